"""The algorithms, pure: no clock, no chance, no process, no socket, no file.

Tables (`meetings`) say who sends what to whom in which step; machines (`server`, `gates`, `worker`) take events and
answer with actions, their state a flat run of integers; rules are tensor algebra; programmes are coordinators, which
command. Engines do what they say.
"""
