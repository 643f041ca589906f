"""Races of threads and processes: PC4xx."""
