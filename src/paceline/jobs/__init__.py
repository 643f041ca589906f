"""What is trained: a model, its data, a loss and an optimizer."""
