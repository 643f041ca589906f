"""vocabulary: each worker holds some of an embedding's rows, or computes the scores of some words.

    e(word) = sum over w of e_w(word)      where e_w is zero for the words that worker w does not hold

Shoeybi et al., "Megatron-LM", 2019. The linear layer that ends a language model is split in the same way, by `columns`;
where both share one matrix, its rows lie with the same workers for both.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.algorithms.splits import PARTIAL, WHOLE, even, split
from paceline.algorithms.splits.columns import Columns, few
from paceline.algorithms.splits.nodes import Layout, SplitNode


@dataclass(frozen=True)
class Vocabulary:
    name = "vocabulary"

    def refusal(self, node: SplitNode, workers: int) -> str:
        if node.kind not in ("embedding", "linear"):
            return "only embeddings and the linear layer of scores have a vocabulary"
        return few(node.shape_of("weight")[0], "words", workers)

    def layout(self, node: SplitNode, workers: int) -> Layout:
        if node.kind == "linear":
            return Columns().layout(node, workers)
        return Layout((WHOLE,), PARTIAL, {"weight": split(0, even(node.shape_of("weight")[0], workers))})
