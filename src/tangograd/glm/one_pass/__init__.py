"""One pass over rows: the state of an estimate, the paths that it takes, and what they end in."""
