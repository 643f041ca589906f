"""Pairing: a machine that gets a short code becomes one of a run, without keys that were copied before.

    code.py       codes such as 7-lantern-osprey, of the words in words.txt; how many guesses one bears
    exchange.py   messages between two machines, each within a deadline, by which both prove that they know a code
                  without saying it (SPAKE2, within TLS), and a visit at the door of a run
    discovery.py  where a code's run is, as the machines of the same network say (mDNS), if zeroconf is installed
    door.py       where a run lets machines in, and whom it looks at

docs/internals/pairing.md says what an attacker can do.
"""
