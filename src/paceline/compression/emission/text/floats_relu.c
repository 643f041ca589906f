ALWAYS Lanes relu(Lanes x) { return chosen(x > 0.0f, x, (Lanes){0}); }
