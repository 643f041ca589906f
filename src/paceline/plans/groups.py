"""The groups in which plans are listed for people."""

from __future__ import annotations

from typing import Any

from paceline.plans.plan import RECIPES, recipe_of
from paceline.plans.recipe import ALIASES, MEANINGS, Kind

#: The title of each group and its plans, in the order in which a reader meets them.
GROUPS = {
    "One process": ("sequential",),
    "All workers in step, gradients summed in every update": (
        "ring",
        "tree",
        "halving_doubling",
        "hierarchical",
        "central",
        "backup",
    ),
    "Asynchronous: a parameter server, or shared memory": ("downpour", "ssp", "dc_asgd", "gap_aware", "hogwild"),
    "Local steps, replicas averaged": ("local_sgd", "parallel_sgd", "easgd", "diloco", "gossip"),
    "A coordinator that commands": ("sandblaster",),
    "The model cut into stages": (
        "layers",
        "gpipe",
        "one_f_one_b",
        "interleaved",
        "zero_bubble",
        "pipedream",
        "spectrain",
        "table",
    ),
    "Layers split among workers": ("tensor", "redundant", "experts", "zero", "cannon", "one_weird_trick", "per_layer"),
    "Operators that send messages, for models whose structure depends on the input": ("ampnet",),
    "Mixtures of stages, splits and replicas": ("mesh", "distbelief"),
    "For comparison only": ("ceiling", "ddp"),
}
OTHERS = "Others"


def grouped() -> dict[str, tuple[str, ...]]:
    """Return every plan under the title of its group."""
    listed = {name for names in GROUPS.values() for name in names}
    others = tuple(name for name in RECIPES if name not in listed)
    return {**GROUPS, OTHERS: others} if others else dict(GROUPS)


def described() -> dict[str, list[dict[str, object]]]:
    """Return what there is to say about each plan, by group."""
    return {title: [_described(name, title) for name in names] for title, names in grouped().items()}


def description(name: str) -> dict[str, Any]:
    """Return what there is to say about one plan, by its name or another that it has, and about its options."""
    plan_name, recipe = recipe_of(name)
    group = next(title for title, names in grouped().items() if plan_name in names)
    options = [
        {"name": key, "default": kind.default, "values": _values(kind), "meaning": MEANINGS[key]}
        for key, kind in recipe.options.items()
    ]
    return {**_described(plan_name, group), "options": options}


def _values(kind: Kind) -> str:
    """Return what values an option may have."""
    if kind.words:
        return " | ".join(kind.words)
    if isinstance(kind.default, str):
        return "text"
    return f"{'whole number' if isinstance(kind.default, int) else 'number'}, at least {kind.least:g}"


def _described(name: str, group: str) -> dict[str, object]:
    recipe = RECIPES[name]
    return {
        "name": name,
        "group": group,
        "about": recipe.about,
        "options": {key: kind.default for key, kind in recipe.options.items()},
        "also_called": [alias for alias, meant in ALIASES.items() if meant.partition(":")[0] == name],
    }
