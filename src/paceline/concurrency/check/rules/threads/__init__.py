"""Threads, executors and timers that do not end: PC2xx."""
