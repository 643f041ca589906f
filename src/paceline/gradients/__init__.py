"""How a worker computes its gradient, and what it sends of it."""
