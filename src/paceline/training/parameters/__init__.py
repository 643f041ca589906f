"""Parameters: their layout in memory, the stores that step them, and the versions that workers see."""
