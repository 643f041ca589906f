"""How long pushes queue for a server: the machine-repairman model, by mean value analysis."""

from __future__ import annotations


def queued(workers: int, think: float, serve: float) -> tuple[float, float]:
    """Return pushes per second and the mean wait of a push before it is served.

    Workers think (compute), then queue for one server. Service times are taken to be between constant and exponential:
    half of the work under way is left when a push arrives.
    """
    queue, busy, rate, wait = 0.0, 0.0, 0.0, 0.0
    for count in range(1, workers + 1):
        wait = serve * (queue - busy / 2) if count > 1 else 0.0
        rate = min(count / (think + wait + serve), 1 / serve)
        queue = rate * (wait + serve)
        busy = min(1.0, rate * serve)
    return rate, wait
