"""No file makes the checker fail: Python 2, other encodings, deep nesting, truncated and mutated text."""

from __future__ import annotations

import ast
import gc
import random
from pathlib import Path

import pytest

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import check_paths

SEEDS = [rule.bad for rule in RULES.values()]
PYTHON_2 = """
import threading
lock = threading.Lock()

def f(x, (a, b)):
    lock.acquire()
    try:
        print >>x, "hello", 0777, `a`
        if a <> b:
            return map(lambda (k, v): v, x)
        raise ValueError, "no"
    except (IOError, OSError), e:
        print e
    lock.release()
"""


def test_python_2_is_read() -> None:
    assert [f.rule for f in check_text("old.py", PYTHON_2)] == ["PC102"]


CHOSEN = """
from subprocess import PIPE, Popen

def run(quiet, sink=None):
    sink = sink if quiet else PIPE
    child = Popen(["make"], stdout=sink)
    child.wait()
"""


def test_a_variable_that_is_chosen_from_itself_is_followed_once() -> None:
    assert [f.rule for f in check_text("chosen.py", CHOSEN)] == ["PC202"]


def test_what_cannot_be_parsed_is_reported() -> None:
    (found,) = check_text("broken.py", "import threading\nclass (:\n")
    assert (found.rule, found.line) == ("PC001", 2)


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00thread", b"# coding: nonsense\nlock = 1\n", b"thread = '\x00'", b""])
def test_any_bytes_are_read(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.py").write_bytes(raw)
    assert check_paths([tmp_path], Options(cache=False)).files == 1


def test_deep_nesting_is_read() -> None:
    check_text("x.py", "lock = " + "+".join(["1"] * 20_000))
    check_text(
        "x.py", "def f(lock):\n" + "".join("    " * n + "if lock:\n" for n in range(1, 90)) + "    " * 90 + "pass\n"
    )
    check_text("x.py", "def f(lock):\n    if lock: pass\n" + "    elif lock: lock.acquire()\n" * 3_000)


def mutated(text: str, chance: random.Random) -> str:
    """The text with a piece cut out, doubled, moved, or its end missing."""
    first, last = sorted(chance.randrange(len(text)) for _ in range(2))
    last = min(last, first + 60)
    where = chance.randrange(len(text))
    return chance.choice(
        [
            text[:where],
            text[:first] + text[last:],
            text[:last] + text[first:],
            text[:where] + text[first:last] + text[where:],
            text[:first]
            + chance.choice(["(", ":", "\n", "await ", "yield ", "self.", "lock.acquire()\n"])
            + text[first:],
        ]
    )


def test_mutated_files_are_read() -> None:
    chance = random.Random(7)
    for _ in range(1_500):
        text = mutated(chance.choice(SEEDS), chance)
        if chance.random() < 0.3:
            text = mutated(text, chance) if text else text
        check_text("mutant.py", text)


def test_the_garbage_collector_is_left_as_it_was() -> None:
    for switch in (gc.disable, gc.enable):
        switch()
        before = gc.isenabled()
        check_text("x.py", SEEDS[0])
        assert gc.isenabled() == before


def test_a_syntax_tree_does_not_outlive_its_file() -> None:
    text = "import threading\n\ndef total(a, b):\n    del a[0]\n    return not a or -a[0] + b < 2\n"
    gc.collect()
    before = _nodes()
    check_text("train.py", text)
    assert _nodes() == before


def _nodes() -> int:
    return sum(isinstance(thing, ast.stmt | ast.expr) for thing in gc.get_objects())
