"""Rewrite src/paceline/plans/named.pyi from the table of recipes: python docs/_site/plan_stubs.py"""

from __future__ import annotations

from pathlib import Path

from paceline.plans.named import class_name, type_of
from paceline.plans.plan import RECIPES
from paceline.plans.recipe import Kind

PLACE = Path(__file__).parents[2] / "src" / "paceline" / "plans" / "named.pyi"
HEAD = """# Written by `python docs/_site/plan_stubs.py` from the table of recipes.
from collections.abc import Callable, Iterator
from typing import Any, Literal

from paceline.plans.plan import Plan
from paceline.plans.recipe import Kind

def class_name(plan: str) -> str: ...
def constructor_of(name: str) -> Callable[..., Plan] | None: ...
def constructors() -> Iterator[str]: ...
def type_of(kind: Kind) -> Any: ...
"""


def stub() -> str:
    """Return the text of the stub."""
    names = "".join(f"    {class_name(name)!r},\n" for name in sorted(RECIPES, key=class_name)).replace("'", '"')
    return f"{HEAD}\n__all__ = [\n{names}]\n\n" + "".join(f"{_constructor(name)}\n" for name in RECIPES)[:-1]


def _constructor(name: str) -> str:
    recipe = RECIPES[name]
    options = "".join(f"    {key}: {_type(kind)} = {kind.default!r},\n" for key, kind in recipe.options.items())
    options = options.replace("'", '"')
    return (
        f"def {class_name(name)}(  # noqa: N802\n    *,\n{options}) -> Plan:\n"
        f'    """Plan `{name}`: {recipe.about}."""\n'
    )


def _type(kind: Kind) -> str:
    found = type_of(kind)
    if kind.words:
        return f"Literal[{', '.join(repr(word) for word in kind.words)}]"
    return found.__name__ if isinstance(found, type) else "float | None"


if __name__ == "__main__":
    PLACE.write_text(stub())
