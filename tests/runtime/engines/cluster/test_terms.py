"""Nodes compare what they would train before the first update."""

from __future__ import annotations

from dataclasses import replace

import paceline as pl
from paceline.interfaces.testing.jobs import JOBS
from paceline.runtime.engines.cluster.terms import Terms, arithmetic_sha256, difference
from paceline.runtime.engines.setup import set_up


def terms(plan: str) -> Terms:
    return Terms.of(set_up(JOBS["mlp"](), pl.Plan.parse(plan), "cluster", 1), 2)


def test_a_node_with_other_arithmetic_is_refused_under_a_canonical_sum() -> None:
    head = terms("ring:workers=2,canonical=4")
    assert head.arithmetic == arithmetic_sha256()
    assert not difference(head, terms("ring:workers=2,canonical=4"), 1)
    told = difference(head, replace(head, arithmetic="0" * 64), 1)
    assert told.startswith("rank 1 has other bits than rank 0")
    assert told.endswith("set PACELINE_MAX_CPU_ISA=avx2 on all nodes, or train without canonical=")
    limited = replace(head, max_cpu_isa="avx2")
    told = difference(limited, replace(limited, arithmetic="0" * 64), 1)
    assert told.endswith("cannot compute the same bits, though limited to avx2; train without canonical=")
    assert difference(limited, head, 1).endswith("set PACELINE_MAX_CPU_ISA alike on all nodes")


def test_without_it_arithmetic_may_differ() -> None:
    assert not terms("ring:workers=2").arithmetic
