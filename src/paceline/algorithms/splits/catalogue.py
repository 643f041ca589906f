"""The ways to split a layer, by the word that users write."""

from __future__ import annotations

from paceline.algorithms.splits.cannon import Cannon
from paceline.algorithms.splits.channels import Channels
from paceline.algorithms.splits.columns import Columns
from paceline.algorithms.splits.experts import Experts
from paceline.algorithms.splits.heads import Heads
from paceline.algorithms.splits.nodes import Split
from paceline.algorithms.splits.replica import Replica
from paceline.algorithms.splits.rows import Rows
from paceline.algorithms.splits.samples import Samples
from paceline.algorithms.splits.strips import Strips
from paceline.algorithms.splits.vocabulary import Vocabulary
from paceline.algorithms.splits.whole import Whole

_ALL: tuple[Split, ...] = (
    Columns(),
    Rows(),
    Heads(),
    Channels(),
    Samples(),
    Vocabulary(),
    Experts(),
    Cannon(),
    Whole(),
)
#: The ways that a user may name for a layer.
WAYS: dict[str, Split] = {each.name: each for each in _ALL}
SPLITS: dict[str, Split] = {**WAYS, Replica.name: Replica(), Strips.name: Strips()}
