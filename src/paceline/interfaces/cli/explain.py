"""The command `paceline explain`."""

from __future__ import annotations

from typing import Annotated

import typer

NAME_HELP = "A rule of `paceline check`, as PC404 or lock-order; or an error, by its first word, as WorkerFailed."


def explain(name: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP)]) -> None:
    """Explain a finding or an error: what it means, why, and what to do."""
    from paceline.concurrency.check.reporting.page import explain_rule
    from paceline.concurrency.check.rules import RULES
    from paceline.errors.remedies import explain_error

    rules = {word.lower() for rule in RULES.values() for word in (rule.code, rule.name)}
    looks_like_rule = name.strip().lower() in rules or name.strip()[:2].upper() == "PC"
    typer.echo(explain_rule(name) if looks_like_rule else explain_error(name))
