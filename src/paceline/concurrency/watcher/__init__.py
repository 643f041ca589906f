"""Watch a running program from outside and name a deadlock while it happens; see docs/internals/watcher.md.

`samples` says what is observed. `proc`, `waits`, `sockets` and `stacks` observe it. `graph`, `ranks`, `footprint` and
`judge` are pure: they decide from samples alone, so a recorded trace is judged exactly as the live program was.
"""
