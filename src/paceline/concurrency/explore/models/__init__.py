"""What locks, conditions, semaphores, events and barriers do, as pure machines: no thread, no clock, no scheduler.

Threads are numbers. Each machine says whether a thread may continue, and changes when it does; `interpose` puts them
behind the names of `threading`.
"""
