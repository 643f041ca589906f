"""Helpers for testing plans, members of `algorithms` and plug-ins.

jobs.py         small models that between them have every awkward feature
conformance.py  the invariants of every plan on every engine
killing.py      killing real workers
survival/       faults for real runs on a cluster, and proofs of what they did
leaks.py        checking that a test leaves no process, thread, descriptor or file behind
"""
