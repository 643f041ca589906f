"""The command `paceline explore`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.errors import UsageError
from paceline.interfaces.cli import options
from paceline.interfaces.cli.terminal import print_json
from paceline.names import visible

if TYPE_CHECKING:
    from paceline.concurrency.explore.session import Target

FORMS = "FILE.py, FILE.py:FUNCTION, FILE.py::TEST or MODULE:FUNCTION"
DRILLS = ("exception", "short", "nan", "sigterm", "disk")

# The arguments and options of `paceline explore`.


class ExploreStrategy(str, Enum):
    """How schedules are chosen."""

    auto = "auto"
    random = "random"
    pos = "pos"
    dpor = "dpor"
    directed = "directed"


class ExploreFormat(str, Enum):
    """The output formats of `paceline explore`."""

    text = "text"
    json = "json"
    sarif = "sarif"
    html = "html"


ExploreTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A script with its own main, FILE.py:FUNCTION, MODULE:FUNCTION, or FILE.py::TEST, as pytest names it. "
        "All tests: pytest -p paceline.concurrency.explore.pytest_plugin --explore.",
    ),
]
ExploreArguments = Annotated[
    list[str] | None, typer.Argument(metavar="-- ARGUMENTS", help="What the script gets in sys.argv, after `--`.")
]
ExploreRanks = Annotated[
    int,
    typer.Option("--ranks", min=0, metavar="N", help="Run the script on N ranks, as torchrun would, in one process."),
]
ExploreDrills = Annotated[
    list[str] | None,
    typer.Option(
        "--drill",
        metavar="KIND[:STEP[:RANK]]",
        help="With --ranks: try a fault on one rank: exception, short, nan, sigterm, disk, or all. May be repeated.",
    ),
]
ExploreSeconds = Annotated[float, typer.Option("--seconds", min=0.0, help="Search no longer than this.")]
ExploreSchedules = Annotated[int, typer.Option("--schedules", min=1, help="Run at most this many schedules.")]
ExploreSteps = Annotated[int, typer.Option("--steps", min=100, help="A run with more steps never ends.")]
ExploreLate = Annotated[
    float,
    typer.Option(
        "--late",
        min=0.0,
        metavar="SECONDS",
        help="A thread that could run waits at most this long for its turn: more for a slower machine.",
    ),
]
Strategy = Annotated[
    ExploreStrategy, typer.Option("--strategy", help="How schedules are chosen; auto alternates all of them.")
]
ExploreSeed = Annotated[int, typer.Option("--seed", help="Of the random strategies.")]
ExploreRaces = Annotated[bool, typer.Option("--races", help="Also report data races that did no harm in the run.")]
ExploreSame = Annotated[
    bool, typer.Option("--same", help="Also report schedules in which the program prints otherwise.")
]
ExploreFirst = Annotated[bool, typer.Option("--first", help="Stop at the first finding.")]
ExploreForm = Annotated[ExploreFormat, typer.Option("--format", help="Output format; html is one page with lanes.")]
ExploreReplay = Annotated[
    str, typer.Option("--replay", metavar="TOKEN", help="Run the one schedule of a finding again.")
]
ExploreScope = Annotated[
    list[Path] | None,
    typer.Option("--scope", metavar="DIR", help="A further folder whose files are the program's. May be repeated."),
]


def explore(
    target: ExploreTarget,
    arguments: ExploreArguments = None,
    ranks: ExploreRanks = 0,
    drill: ExploreDrills = None,
    seconds: ExploreSeconds = 30.0,
    schedules: ExploreSchedules = 2_000,
    steps: ExploreSteps = 20_000,
    late: ExploreLate = 0.03,
    strategy: Strategy = ExploreStrategy.auto,
    seed: ExploreSeed = 0,
    races: ExploreRaces = False,
    same: ExploreSame = False,
    first: ExploreFirst = False,
    replay: ExploreReplay = "",
    scope: ExploreScope = None,
    form: ExploreForm = ExploreFormat.text,
    json: options.Json = False,
) -> None:
    """Run a program in many orders of its threads, tasks, processes or ranks, and find those in which it goes wrong.

    The program is executed, again and again, each time in a process of its own: it should do nothing that may not be
    repeated. A finding shows the order, with as few switches as it needs, and a token that replays it. Exits with 0
    when nothing was found, 1 when something was, 2 when the program could not be explored.
    """
    from paceline.concurrency.explore.session import Session, Settings

    settings = Settings(
        seconds=seconds,
        schedules=schedules,
        strategy=strategy.value,
        seed=seed,
        races=races,
        same=same,
        first=first,
        ranks=ranks,
        steps=steps,
        late=late,
        replay=replay,
        drills=drills_of(drill or (), ranks),
        scope=tuple(scope or ()),
    )
    where = parse_target(target, tuple(arguments or ()))
    with Session() as session:
        answer = session.explore(where, settings)
    if json or form.value == "json":
        print_json(answer.report)
    elif form.value in ("sarif", "html"):
        from paceline.concurrency.explore import formats

        typer.echo(getattr(formats, form.value)(answer.report))
    else:
        typer.echo(visible(answer.text))
    raise typer.Exit(answer.code)


def parse_target(text: str, arguments: tuple[str, ...] = ()) -> Target:
    """Return the target that a command line names.

    >>> parse_target("shop.stock:sell_last_item").function
    'sell_last_item'
    """
    from paceline.concurrency.explore.session import Target

    file, colons, test = text.partition("::")
    if colons and file.endswith(".py") and test:
        return Target(file, test=test)
    name, colon, function = text.rpartition(":")
    if not colon:
        name, function = text, ""
    if colon and not function.replace(".", "_").isidentifier():
        raise UsageError(f"{text!r}: {function!r} is not the name of a function; write FILE.py:FUNCTION")
    if not function and _is_of_tests(Path(name)):
        raise UsageError(
            f"{text} is a file of tests: name one, as {text}::test_sale, or run all with "
            f"`pytest -p paceline.concurrency.explore.pytest_plugin --explore {text}`"
        )
    if name.endswith(".py"):
        return Target(file=name, function=function, arguments=arguments)
    if not function:
        raise UsageError(f"{text!r} is neither a script nor a function; write {FORMS}")
    return Target(module=name, function=function, arguments=arguments)


def _is_of_tests(file: Path) -> bool:
    """Whether a file holds tests, and does nothing as a script."""
    is_named_so = re.fullmatch(r"test_.*\.py|.*_test\.py", file.name) is not None
    return is_named_so and file.is_file() and "__main__" not in file.read_text(encoding="utf-8", errors="replace")


def drills_of(names: Sequence[str], ranks: int) -> tuple[str, ...]:
    """Return drills as KIND:STEP:RANK: usually in step 2 of the last rank, but rank 0 is the one that saves.

    >>> drills_of(["nan", "disk:3"], ranks=2)
    ('nan:2:1', 'disk:3:0')
    """
    if names and ranks < 2:
        raise UsageError(f"--drill {names[0]}: a fault on one rank needs others; add --ranks 2 or more")
    drills = []
    for each in (each for name in names for each in (DRILLS if name == "all" else (name,))):
        kind, *numbers = each.split(":")
        if kind not in DRILLS or len(numbers) > 2 or not all(number.isdigit() for number in numbers):
            form = f"{', '.join(DRILLS)} or all, each as KIND, KIND:STEP or KIND:STEP:RANK"
            raise UsageError(f"--drill {each}: not a drill; write {form}")
        usual = ["1", "0"] if kind == "disk" else ["2", str(ranks - 1)]
        drills.append(":".join([kind, *numbers, *usual[len(numbers) :]]))
    return tuple(drills)
