"""Data: the order in which an epoch visits the samples, and the reading of batches."""
