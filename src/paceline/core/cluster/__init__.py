"""A cluster of machines: what is decided there, without a clock, a socket or a process."""
