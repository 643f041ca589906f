"""What a file says, without what its names stand for: its text, its tree, control-flow graphs and declarations."""
