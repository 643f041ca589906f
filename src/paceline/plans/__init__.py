"""Plans say how a job is trained: a plan is a method with its options, and well-known plans have names."""
