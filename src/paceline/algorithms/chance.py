"""Random seeds as data: one number from the words that name where it is used."""

from __future__ import annotations

_MASK = 2**64 - 1


def mix(*words: int) -> int:
    """Return a 64-bit number that changes in every bit with each word (splitmix64 over the words)."""
    state = 0x9E3779B97F4A7C15
    for word in words:
        state = (state ^ word) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state
