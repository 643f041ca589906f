"""The algorithms, pure: no clock, no randomness, no process, no socket, no file.

Tables (`collectives`, `schedules`) list what each worker sends, receives and computes in which step; machines
(`server`) take events and answer with actions, their state a flat run of integers; `rules` are tensor algebra;
`coordinators` are generators of commands. Engines execute them.
"""
