"""Explores the schedules of a program: finds the interleaving that goes wrong, makes it short, and replays it.

operation, scheduler      one thread runs at a time; who is next is chosen at every operation
strategies/               how it is chosen: a pure machine for each published strategy
interpose/                puts controlled forms behind the names of threading, queue, multiprocessing, time and asyncio
rewriting/                makes accesses of data operations, in the program's own files
finding, oracles          what counts as wrong: failures, deadlocks, lost updates, races, what the checker suspects
child, search, report     one run in a process of its own; run after run; what was found, and its token
ranks/                    ranks of torch.distributed as threads, and drills
worker, session           the exploring process, and how to start it
suspicion, alarms         what the checker suspects, and its findings confirmed
pytest_plugin, formats    tests, as pytest runs them; SARIF and HTML
"""

from __future__ import annotations
