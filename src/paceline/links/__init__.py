"""How bytes reach another worker."""
