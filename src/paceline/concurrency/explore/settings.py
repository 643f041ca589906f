"""What is explored, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.concurrency.explore.suspects import Suspect
from paceline.errors import UsageError

DRILLS = ("exception", "short", "nan", "sigterm")
STRATEGIES = ("auto", "random", "pos", "dpor", "directed")


@dataclass(frozen=True, slots=True)
class Target:
    """A script with its own main, or a function without arguments."""

    file: str = ""  # of a script, or of the function
    module: str = ""  # of the function, where no file is named
    function: str = ""
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file or self.module}{f':{self.function}' if self.function else ''}"


@dataclass(frozen=True, slots=True)
class Settings:
    """How long, how, and what else than crashes and deadlocks counts as wrong."""

    seconds: float = 30.0
    schedules: int = 2_000
    strategy: str = "auto"
    seed: int = 0
    races: bool = False
    same: bool = False
    ranks: int = 0
    drill: str = ""  # one fault on one rank
    first: bool = False  # end the search with the first finding
    suspects: tuple[Suspect, ...] = ()  # of the checker, each looked for until it is confirmed
    steps: int = 20_000  # after which a run is given up
    run_seconds: float = 30.0  # real ones, for a single run


def parse_target(text: str, arguments: tuple[str, ...] = ()) -> Target:
    """Return the target that a command line names.

    >>> parse_target("shop.stock:sell_last_item").function
    'sell_last_item'
    """
    name, colon, function = text.rpartition(":")
    if not colon:
        name, function = text, ""
    if colon and not function.replace(".", "_").isidentifier():
        raise UsageError(f"{text!r}: {function!r} is not the name of a function; write FILE.py:FUNCTION")
    if name.endswith(".py"):
        return Target(file=name, function=function, arguments=arguments)
    if not function:
        raise UsageError(
            f"{text!r} is neither a script nor a function; write FILE.py, FILE.py:FUNCTION or MODULE:FUNCTION"
        )
    return Target(module=name, function=function, arguments=arguments)
