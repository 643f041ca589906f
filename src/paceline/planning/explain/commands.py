"""The commands of a coordinator in an update, as text."""

from __future__ import annotations

from paceline.algorithms.coordinators import PARAMETERS, Axpy, Command, Coordinator, Copy, Dot, Evaluate, Scale
from paceline.algorithms.coordinators.rehearsal import rehearse

REHEARSED = 3  # updates: enough to see what is remembered


def draw_commands(coordinator: Coordinator) -> list[str]:
    """Draw the commands of an update as a rehearsal gives them, and the collectives that they need."""
    *_, commands = rehearse(coordinator, REHEARSED).updates
    signs, stale = list[str](), False
    for command in commands:
        if isinstance(command, Evaluate):
            signs.append("M-M" if stale else "-M")
            stale = False
        else:
            signs.append("m" * isinstance(command, Dot))
            stale = stale or getattr(command, "target", "") == PARAMETERS
    marks = "".join(signs)
    return [
        f"What the coordinator commands in update {REHEARSED} of a rehearsal:",
        "",
        *(f"  {sign:>3}  {_formula(command)}" for sign, command in zip(signs, commands, strict=True)),
        "",
        "    -  every worker computes its chunk",
        "    M  a collective over the vector: to gather changed parameters, and to add up the gradient",
        "    m  a collective over one number",
        "    k  some number",
        "",
        f"{len(commands)} commands; {marks.count('M')} collectives over the vector, {marks.count('m')} over a number.",
        "Every worker is a shard too: it holds its slice of every vector. And every worker runs the coordinator, which",
        "decides by numbers alone; all get the same ones.",
    ]


def _formula(command: Command) -> str:
    """Return a command as a formula."""
    if isinstance(command, Dot):
        return f"{command.one} . {command.other}"
    if isinstance(command, Copy):
        return f"{command.target} <- {command.source}"
    if isinstance(command, Scale):
        return f"{command.target} <- k {command.target}"
    if isinstance(command, Axpy):
        return f"{command.target} <- {command.target} + k {command.other}"
    return "loss and gradient of the parameters"
