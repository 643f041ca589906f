"""Plans in training loops that other libraries own; each file imports its library, and nobody else imports the file.

    lightning     a strategy for Lightning's Trainer
    accelerate    an Accelerator whose `prepare` takes a plan

What these libraries do over torch.distributed needs nothing from here, but the backend's word: see docs/adapters.md.
"""
