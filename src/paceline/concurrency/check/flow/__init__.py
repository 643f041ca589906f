"""What happens on the paths through a function, and through the functions that it calls."""
