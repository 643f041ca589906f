"""Where batches come from: the order of an epoch, and the samples at some places of it."""
