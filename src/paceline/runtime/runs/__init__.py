"""The record of a run: its folder, its trace, and what both say about time."""
