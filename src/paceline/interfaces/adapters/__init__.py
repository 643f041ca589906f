"""Plans in training loops that other libraries own. Each file imports its library, and no other module imports it.

    lightning     a strategy for Lightning's Trainer
    accelerate    an Accelerator whose `prepare` takes a plan

What these libraries do over torch.distributed needs only the backend's name: see docs/tutorials/coming-from.md.
"""
