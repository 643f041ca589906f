"""What the names of a file stand for, where values come from, and which of them differ from rank to rank."""
