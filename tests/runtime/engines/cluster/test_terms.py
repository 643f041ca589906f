"""Nodes compare what they would train before the first update."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

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
    assert told.endswith("MKL_CBWR=COMPATIBLE on all nodes, or train without canonical=")


def test_without_it_arithmetic_may_differ() -> None:
    assert not terms("ring:workers=2").arithmetic


@pytest.mark.soak
def test_another_instruction_set_has_other_arithmetic() -> None:
    program = "from paceline.runtime.engines.cluster.terms import arithmetic_sha256; print(arithmetic_sha256())"
    shas = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "ATEN_CPU_CAPABILITY": capability},
            text=True,
            capture_output=True,
            check=True,
        ).stdout
        for capability in ("default", "avx2")
    }
    assert len(shas) == 2
