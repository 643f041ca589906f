"""The face of the library: train, compare, parallel, and the comparison of scripts."""
