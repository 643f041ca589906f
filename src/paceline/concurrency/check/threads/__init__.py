"""What runs at the same time, what it shares, and which locks it takes in which order."""
