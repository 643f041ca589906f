"""Many configurations of one job, on this machine, on ranks or on Ray."""
