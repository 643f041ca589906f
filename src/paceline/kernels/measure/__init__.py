"""How fast: against the machine's peak, the libraries, and a published study. `paceline bench kernels`."""
