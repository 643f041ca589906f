ALWAYS Lanes hyperbolic(Lanes x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }
