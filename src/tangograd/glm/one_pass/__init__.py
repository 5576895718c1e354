"""One-pass maximum likelihood: quadratic sums along a path, corrected by a sample of kept rows."""
