"""A worker's gradients: how they are computed, and in which form they are sent."""
