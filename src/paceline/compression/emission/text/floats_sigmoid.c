ALWAYS Lanes sigmoid(Lanes x) { return 1.0f / (1.0f + exponential(-x)); }
