"""What workers do in a process: servers in shared memory, coordinators, DDP, updates in generated code."""
