"""The ways to split a layer, by the word that users write."""

from __future__ import annotations

from paceline.core.splits.cannon import Cannon
from paceline.core.splits.channels import Channels
from paceline.core.splits.columns import Columns
from paceline.core.splits.experts import Experts
from paceline.core.splits.heads import Heads
from paceline.core.splits.nodes import Split
from paceline.core.splits.replica import Replica
from paceline.core.splits.rows import Rows
from paceline.core.splits.samples import Samples
from paceline.core.splits.strips import Strips
from paceline.core.splits.vocabulary import Vocabulary
from paceline.core.splits.whole import Whole

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
