"""A constructor for every named plan: `Downpour(workers=4)` is `Plan.parse("downpour:workers=4")`.

They are made from the table of recipes. `named.pyi` states them for editors and type checkers;
`python docs/_site/plan_stubs.py` writes it, and a test compares it with the table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal

from paceline.plans.plan import RECIPES, Plan, make
from paceline.plans.recipe import Kind


def class_name(plan: str) -> str:
    """Return the name of a plan's constructor, such as `DcAsgd` for dc_asgd."""
    return "".join(part.capitalize() for part in plan.split("_"))


def constructor_of(name: str) -> Callable[..., Plan] | None:
    """Return the constructor with this name, or None if no plan has it."""
    return next((_constructor(plan) for plan in RECIPES if class_name(plan) == name), None)


def constructors() -> Iterator[str]:
    """Yield the names of all constructors."""
    return map(class_name, RECIPES)


def _constructor(plan: str) -> Callable[..., Plan]:
    def build(**options: Any) -> Plan:
        return make(plan, **options)

    recipe = RECIPES[plan]
    parameters = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=kind.default, annotation=type_of(kind))
        for option, kind in recipe.options.items()
    ]
    build.__name__ = build.__qualname__ = class_name(plan)
    build.__doc__ = f"Plan `{plan}`: {recipe.about}."
    build.__signature__ = inspect.Signature(parameters, return_annotation=Plan)  # type: ignore[attr-defined]
    return build


def type_of(kind: Kind) -> Any:
    """Return the type of an option's values."""
    if kind.words:
        return Literal[kind.words]
    if kind.default is None:
        return float | None
    return type(kind.default)


def __getattr__(name: str) -> Callable[..., Plan]:
    if (constructor := constructor_of(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return constructor
