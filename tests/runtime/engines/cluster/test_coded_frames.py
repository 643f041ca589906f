"""Coded gradients that are wrong: a server refuses them, or applies them, and serves on."""

from __future__ import annotations

import pytest

from paceline.algorithms.codecs.catalogue import CODECS
from tests.runtime.engines.cluster.hostile_gradients import attacked

FRAMES = 40


@pytest.mark.parametrize("codec", CODECS)
def test_a_server_outlives_wrong_coded_gradients(codec: str) -> None:
    refused, applied = attacked(codec, FRAMES, seed=7)
    assert refused, "truncated and prolonged frames are refused"
    assert refused + applied == FRAMES
