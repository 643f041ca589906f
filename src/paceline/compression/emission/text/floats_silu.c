ALWAYS Lanes silu(Lanes x) { return x / (1.0f + exponential(-x)); }
