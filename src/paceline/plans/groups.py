"""The groups in which plans are listed for people."""

from __future__ import annotations

from paceline.plans.aliases import ALIASES
from paceline.plans.plan import RECIPES

#: The title of each group and its plans, in the order in which a reader meets them.
GROUPS = {
    "One process": ("sequential",),
    "All workers in step, gradients summed in every update": (
        "ring", "tree", "halving_doubling", "hierarchical", "central", "backup",
    ),
    "Asynchronous: a parameter server, or shared memory": ("downpour", "ssp", "dc_asgd", "hogwild"),
    "Local steps, replicas averaged": ("local_sgd", "parallel_sgd", "easgd", "diloco", "gossip"),
    "A coordinator that commands": ("sandblaster",),
    "The model cut into stages": (
        "layers", "gpipe", "one_f_one_b", "interleaved", "zero_bubble", "pipedream", "spectrain", "table",
    ),
    "Layers split among workers": ("tensor", "redundant", "experts", "zero", "cannon", "one_weird_trick", "per_layer"),
    "Mixtures of stages, splits and replicas": ("mesh", "distbelief"),
    "For comparison only": ("ceiling", "ddp"),
}  # fmt: skip
OTHERS = "Others"


def grouped() -> dict[str, tuple[str, ...]]:
    """Return every plan under the title of its group."""
    listed = {name for names in GROUPS.values() for name in names}
    others = tuple(name for name in RECIPES if name not in listed)
    return {**GROUPS, OTHERS: others} if others else dict(GROUPS)


def described() -> dict[str, list[dict[str, object]]]:
    """Return what there is to say about each plan, by group."""
    return {title: [_described(name, title) for name in names] for title, names in grouped().items()}


def _described(name: str, group: str) -> dict[str, object]:
    recipe = RECIPES[name]
    return {
        "name": name,
        "group": group,
        "about": recipe.about,
        "options": {key: kind.default for key, kind in recipe.options.items()},
        "also_called": [alias for alias, meant in ALIASES.items() if meant.partition(":")[0] == name],
    }
