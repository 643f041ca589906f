"""Pairs of programs that differ only in how an object, or the caller of a function, is reached.

The tables `*.txt` hold ways of reaching one; `programs` writes a program for each way and each bug, once with the bug
and once repaired. `processes.txt` holds such programs as differences, each with the code of what reports the bug.
"""
