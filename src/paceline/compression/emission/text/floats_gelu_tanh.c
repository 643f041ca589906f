ALWAYS Lanes gelu_tanh(Lanes x) {
    Lanes y = 1.595769122f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exponential(-y));
}
