"""The command `paceline explore`."""

from __future__ import annotations

import typer

from paceline.interfaces.cli import explore_options, options
from paceline.interfaces.cli.output import print_json
from paceline.names import visible


def explore(
    target: explore_options.ExploreTarget,
    arguments: explore_options.ExploreArguments = None,
    ranks: explore_options.ExploreRanks = 0,
    drill: explore_options.ExploreDrills = None,
    seconds: explore_options.ExploreSeconds = 30.0,
    schedules: explore_options.ExploreSchedules = 2_000,
    steps: explore_options.ExploreSteps = 20_000,
    strategy: explore_options.Strategy = explore_options.ExploreStrategy.auto,
    seed: explore_options.ExploreSeed = 0,
    races: explore_options.ExploreRaces = False,
    same: explore_options.ExploreSame = False,
    first: explore_options.ExploreFirst = False,
    replay: explore_options.ExploreReplay = "",
    scope: explore_options.ExploreScope = None,
    form: explore_options.ExploreForm = explore_options.ExploreFormat.text,
    json: options.Json = False,
) -> None:
    """Run a program in many orders of its threads, tasks, processes or ranks, and find those in which it goes wrong.

    The program is executed, again and again, each time in a process of its own: it should do nothing that may not be
    repeated. A finding shows the order, with as few switches as it needs, and a token that replays it. Exits with 0
    when nothing was found, 1 when something was, 2 when the program could not be explored.
    """
    from paceline.concurrency.explore.session import Session, drills_of
    from paceline.concurrency.explore.settings import Settings, parse_target

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
    )
    with Session() as session:
        answer = session.explore(
            parse_target(target, tuple(arguments or ())),
            settings,
            replay=replay,
            drills=drills_of(drill or (), ranks),
            scope=scope or (),
        )
    if json or form.value == "json":
        print_json(answer.report)
    elif form.value in ("sarif", "html"):
        from paceline.concurrency.explore import formats

        typer.echo(getattr(formats, form.value)(answer.report))
    else:
        typer.echo(visible(answer.text))
    raise typer.Exit(answer.code)
