"""What the planner is handed, and what follows from its predictions: calibrate, choose, validate."""
