"""Pairing: a machine that is told a short code becomes one of a run, without keys that were copied before.

    code.py       codes such as 7-lantern-osprey, of the words in words.txt; how many guesses one bears
    line.py       messages between two machines, each within a deadline
    exchange.py   by which both ends prove that they know a code, without saying it (SPAKE2, within TLS)
    visit.py      the other side of it
    discovery.py  where a code's run is, as the machines of the same network say (mDNS), if zeroconf is installed
    door.py       where a run lets machines in, and whom it looks at

docs/internals/pairing.md says what an attacker can do.
"""
