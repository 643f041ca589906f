"""How a worker gets its gradient, and how parameters lie in memory."""
