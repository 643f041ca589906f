"""The lines of accepted rows, against a file that is walked line by line."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from paceline.training.preparation.text import Skipped, blank_lines, count_lines, lines_at, lines_of
from tests.each import each


@each("seed", range(50))
def test_against_a_walk(seed: int) -> None:
    chance, line, rows, breaks, skipped = random.Random(seed), 2, [], [], []
    inside = 0
    for _ in range(chance.randrange(30)):
        span = chance.choice([1, 1, 1, 2, 3])
        if chance.random() < 0.3:
            skipped.append((line, span))
        else:
            rows.append(line)
            breaks.append(inside)
            inside += span - 1
        line += span
    given = Skipped(*(np.array([each[at] for each in skipped], np.int64) for at in (0, 1)))
    found = lines_of(np.arange(len(rows)), np.array(breaks, np.int64), True, given)
    assert found.tolist() == rows


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\n\nbc\r\n\r\nd")
    assert count_lines(path) == 5
    assert blank_lines(path).tolist() == [2, 4]
    assert lines_at(path, np.array([0, 3, 9])).tolist() == [1, 3, 5]
