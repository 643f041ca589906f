"""A model cut into stages: traced, cut, checked and run piece by piece."""
