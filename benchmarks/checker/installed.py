"""What the checker says of the standard library and of torch.distributed, how fast it reads, and what breaks it.

    python benchmarks/checker/installed.py [--mutants 100000]

Nothing is cached; one process. The files whose speed counts are those that mention concurrency at all: the others are
passed over by a search for words. Each finding is printed, for a verdict by reading.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.concurrency.check.engine import check_text, is_relevant
from paceline.concurrency.check.syntax.source import Unreadable, read

sys.path[:0] = [str(Path(__file__).parents[1])]
from harness import write  # noqa: E402

LIBRARY = Path(sysconfig.get_path("stdlib"))
PARTS = ("queue.py", "threading.py", "concurrent", "multiprocessing", "asyncio")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mutants", type=int, default=100_000)
    given = options.parse_args()
    spec = find_spec("torch.distributed")
    assert spec is not None
    assert spec.origin is not None
    everything = [f for f in sorted(LIBRARY.rglob("*.py")) if "site-packages" not in f.parts]
    figures = {
        "concurrency in the standard library": noise([f for part in PARTS for f in _files(LIBRARY / part)]),
        "torch.distributed": noise(_files(Path(spec.origin).parent)),
        "the whole standard library": noise(everything, say=False),
        "mutants": endure(everything, given.mutants),
    }
    write(figures, "installed.json")


def _files(at: Path) -> list[Path]:
    return [at] if at.is_file() else sorted(at.rglob("*.py"))


def _readable(files: list[Path]) -> Iterator[tuple[Path, str]]:
    """The files and their texts, without those that their tests keep in broken codings."""
    for file in files:
        with suppress(Unreadable):
            yield file, read(file)


def noise(files: list[Path], say: bool = True) -> dict[str, Any]:
    texts = list(_readable(files))
    concerned = [(file, text) for file, text in texts if is_relevant("", text)]
    rules: Counter[str] = Counter()
    began = time.perf_counter()
    for file, text in concerned:
        for finding in check_text(str(file), text):
            rules[finding.rule] += 1
            if say:
                print(f"{file}:{finding.line}: {finding.rule} {finding.function}: {finding.message}")
    seconds = time.perf_counter() - began
    lines, read_lines = (sum(text.count("\n") for _, text in some) for some in (texts, concerned))
    found = {
        "files": len(texts),
        "lines": lines,
        "files_that_mention_concurrency": len(concerned),
        "lines_of_those": read_lines,
        "lines_per_second_of_those": round(read_lines / seconds),
        "findings": sum(rules.values()),
        "by_rule": dict(sorted(rules.items())),
    }
    print(found)
    return found


def endure(files: list[Path], wanted: int) -> dict[str, int]:
    """Pieces of real files, cut short, doubled, and with words put in; none may let an exception out."""
    chance = random.Random(0)
    texts = [text for _, text in _readable(files) if 20 < len(text) < 20_000 and is_relevant("", text)]
    parsed = 0
    for _ in range(wanted):
        found = check_text("mutant.py", mutant(chance.choice(texts), chance))
        parsed += not any(finding.rule == "PC001" for finding in found)
    print(f"{wanted} mutants, {parsed} of them still Python; no exception")
    return {"mutants": wanted, "still_python": parsed, "exceptions": 0}


def mutant(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    first = chance.randrange(len(lines))
    last = min(len(lines), first + chance.randrange(1, 80))
    kind = chance.randrange(5)
    if kind == 0:
        return "\n".join(lines[:first])
    if kind == 1:
        return "\n".join(lines[first:last])
    if kind == 2:
        return "\n".join(lines[:first] + lines[last:])[:6_000]
    if kind == 3:
        line = lines[first]
        at = chance.randrange(len(line) + 1)
        lines[first] = (
            line[:at] + chance.choice(["lock.acquire()", "(", "await ", "self", ":", "\x00", " if x else "]) + line[at:]
        )
        return "\n".join(lines[max(0, first - 60) : first + 60])
    chance.shuffle(middle := lines[first:last])
    return "\n".join(lines[max(0, first - 40) : first] + middle)


if __name__ == "__main__":
    main()
