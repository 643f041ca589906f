"""The textbook programs: each broken one is found, and its repaired twin is silent.

The programs were written before the checker was run on them; the shapes marked `held out` were not looked at while the
rules were written. A program that is not found yet is listed in `MISSED`, which this test keeps exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.check.engine import check_text

FOLDER = Path(__file__).parent / "textbook"
_SHAPE = re.compile(r"^## (.+?)\n\n```python\n(.*?)^```\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Broken programs that are not found, and repaired twins that are not silent; a fix takes its row away.
MISSED: frozenset[str] = frozenset(
    {
        "await_lock 3: async for and async with inside the lock",
        "blocking_coroutine 1: time.sleep",
        "blocking_coroutine 2: requests in a handler",
        "blocking_coroutine 3: a helper that sleeps",
        "blocking_coroutine 4 (held out): a subprocess and a socket",
        "blocking_coroutine 5 (held out): urlopen through a method of another class",
        "bounded_queues 1: two workers that feed each other",
        "bounded_queues 2: the main thread fills one queue before it empties the other",
        "bounded_queues 3: a crawler whose worker puts into its own queue",
        "bounded_queues 4 (held out): asyncio stages with feedback",
        "bounded_queues 5 (held out): processes with acknowledgements",
        "early_return 2: an empty shard",
        "early_return 3: a file on the local disk",
        "early_return 4 (held out): time runs out in a loop of training",
        "early_return 5 (held out): mpi4py, a helper that answers for this rank",
        "fork_held 1: os.fork under the lock that the child takes",
        "fork_held 2: a process that is started under a lock and takes it",
        "fork_held 3: a thread takes the lock while the main thread forks",
        "fork_held 4 (held out): acquired by hand, forked in a helper",
        "fork_held 5 (held out): a pool of processes under a condition",
    }
)


def shapes() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """Name, expected rules, the broken program, the repaired one."""
    for file in sorted(FOLDER.glob("*.md")):
        text = file.read_text()
        expected = re.search(r"^Expected: (.+)$", text, re.MULTILINE)
        assert expected is not None
        for name, broken, repaired in _SHAPE.findall(text):
            yield f"{file.stem} {name}", tuple(expected[1].split(", ")), broken, repaired


@pytest.mark.parametrize(
    ("name", "expected", "broken", "repaired"), list(shapes()), ids=[shape[0] for shape in shapes()]
)
def test_the_broken_program_is_found_and_the_repaired_one_is_silent(
    name: str, expected: tuple[str, ...], broken: str, repaired: str
) -> None:
    found = [f.rule for f in check_text("program.py", broken) if f.confidence >= 0.5]
    false = [f.rule for f in check_text("program.py", repaired) if f.confidence >= 0.5]
    assert (any(rule.startswith(expected) for rule in found) and not false) == (name not in MISSED), (found, false)
