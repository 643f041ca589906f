"""The lines of shell that begin a run, or resume the one that a killed or stopped process left."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from paceline.interfaces.emit.training import Training

#: The beginning of `"status": "done"` as `runs.json_files` writes it, at the top level of run.json.
DONE = '^ "status": "done"'


def quoted(words: Sequence[str]) -> str:
    """Return words as a shell reads them back."""
    return " ".join(shlex.quote(word) for word in words)


def choose_run(training: Training, when_done: str, only_if: str = "") -> list[str]:
    """Return lines that set "$@" to the command that begins a run in $runs, or resumes the newest one there.

    `when_done` is what happens instead if that run is done. Where the condition `only_if` is false, none is resumed.
    """
    train = quoted(training.trains)
    begin = f'{quoted(training.begins)} --runs "$runs"'
    if not training.resumable:
        return [
            f"# Plan {training.plan.name} keeps no checkpoints, so a new run begins each time.",
            f"set -- {train} {begin}",
        ]
    poll = [
        'for record in "$runs"/*/run.json; do',
        '    if [ -e "$record" ]; then latest=${record%/run.json}; fi',
        "done",
    ]
    return [
        f"set -- {train}",
        "# A run that was stopped or killed goes on from its newest checkpoint. Names of runs begin with the time.",
        "latest=",
        *([f"if {only_if}; then", *(f"    {line}" for line in poll), "fi"] if only_if else poll),
        'if [ -z "$latest" ]; then',
        f'    set -- "$@" {begin}',
        f'elif grep -q {shlex.quote(DONE)} "$latest/run.json"; then',
        f'    echo "$latest is done"; {when_done}',
        "else",
        '    set -- "$@" --resume "$latest"',
        "fi",
    ]
