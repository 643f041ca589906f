"""How a job is trained: a plan is a method with its options; well-known plans have names."""
