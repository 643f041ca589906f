"""How users reach all of it. The names of `import paceline` are defined here; nothing below imports this wing.

    api        `train`, `compare`, `tune`, `parallel`
    cli        the command line, a file for the commands of a subject
    callbacks  hooks of a run: early stopping, the best checkpoint, loggers
    adapters   a strategy for Lightning, an Accelerator
    emit       files for Slurm, Kubernetes and Docker
    testing    the conformance suite, for methods of your own

Read api/train.py first.
"""
