"""Tables as streams of record batches, at constant memory."""
