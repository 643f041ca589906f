"""What the names of a file stand for, and where values come from."""
