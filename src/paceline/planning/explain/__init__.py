"""Explaining plans and runs: drawing them as text, proving them, laying them out as timetables."""
