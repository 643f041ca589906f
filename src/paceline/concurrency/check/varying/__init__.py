"""Which values differ from rank to rank, and why."""
