"""Error feedback loses nothing, over a thousand updates, deaths and a resume."""

from __future__ import annotations

import pytest
from torch import nn

from paceline.algorithms.codecs.catalogue import CODECS
from tests.training.gradients.error_feedback import drift, owing


@pytest.mark.parametrize("codec", owing(list(CODECS)))
def test_sent_and_owed_are_computed_after_a_thousand_updates(codec: str) -> None:
    apart, _ = drift(codec, nn.Linear(24, 12), 1000)
    assert apart < 1e-6


def test_rounding_at_random_owes_nothing_and_is_off() -> None:
    apart, _ = drift("qsgd:2", nn.Linear(24, 12), 50)
    assert apart > 1e-3, "the measure sees what is lost"
