"""Explores the schedules of a program: finds the interleaving that goes wrong, makes it short, and replays it.

operation, scheduler      one thread runs at a time; who is next is chosen at every operation
strategies/               how it is chosen: a pure machine for each published strategy
models/                   what locks, conditions, semaphores and barriers do: pure machines
interpose/                puts the models behind the names of threading, queue, time and asyncio
rewriting/                makes accesses of data operations, in the program's own files
clocks, waits, failures   what counts as wrong: races, deadlocks, exceptions
child, trace              one run in a process of its own
search, shrink, token     run after run; a short schedule; its name
ranks/                    ranks of torch.distributed as threads, and drills
worker, session           the exploring process, and how to start it
"""

from __future__ import annotations
