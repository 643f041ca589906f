"""Small projects read as one program: names, places and files of the merged tree are those of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.concurrency.check import together
from paceline.concurrency.check.engine import examine_together
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.run import check_paths
from paceline.concurrency.check.together import programs

BASE = """
import threading


class Base:
    def __init__(self):
        self.lock = threading.Lock()

    def flush(self):
        with self.lock:
            return 1
"""
DERIVED = """
{imports}


class Store({base}):
    def put(self):
        with self.lock:
            self.flush()
"""


def found(texts: dict[str, str]) -> list[tuple[str, str, int]]:
    examined = examine_together(texts)
    return [(path, f.rule, f.line) for path in sorted(texts) for f in examined[path].findings if f.confidence >= 0.5]


@pytest.mark.parametrize(
    ("imports", "base"),
    [
        ("from app.base import Base", "Base"),
        ("from .base import Base as Parent", "Parent"),
        ("from app import base", "base.Base"),
        ("import app.base", "app.base.Base"),
        ("import app.base as b", "b.Base"),
        ("from app import Base", "Base"),
        ("from app.base import *", "Base"),
    ],
)
def test_a_class_is_known_however_it_is_imported(imports: str, base: str) -> None:
    texts = {
        "app/__init__.py": "from app.base import Base\n",
        "app/base.py": BASE,
        "app/store.py": DERIVED.format(imports=imports, base=base),
    }
    assert programs(texts) == [tuple(sorted(texts))]
    assert found(texts) == [("app/store.py", "PC103", 8)]


def test_names_that_two_files_share_stay_apart() -> None:
    head = "import threading\nfrom other import work\n\nlock = threading.Lock()\n\n"
    one = head + "def main():\n    with lock:\n        work()\n"
    other = "import threading\nlock = threading.Lock()\n\n"
    other += "def main():\n    with lock:\n        pass\n\ndef work():\n    main()\n"
    assert found({"one.py": one, "other.py": other}) == []
    shared = other.replace("lock = threading.Lock()", "from one import lock")
    assert found({"one.py": one, "other.py": shared}) == [("one.py", "PC103", 8)]


def test_a_local_name_hides_one_of_the_module() -> None:
    one = "import threading\n\nlock = threading.Lock()\n\ndef f(g):\n    with lock:\n        g()\n"
    other = (
        "import threading\nfrom one import f\n\nlock = threading.Lock()\n\n"
        "def f2(lock):\n    with lock:\n        f(h)\n\ndef h():\n    with lock:\n        pass\n"
    )
    assert found({"one.py": one, "other.py": other}) == []


def test_steps_in_another_file_name_it() -> None:
    texts = {"app/base.py": BASE, "app/store.py": DERIVED.format(imports="from app.base import Base", base="Base")}
    (finding,) = examine_together(texts)["app/store.py"].findings
    assert [(s.line, "(app/base.py)" in s.what) for s in finding.story if "flush" in s.what] == [(8, False), (10, True)]
    assert "000" not in finding.explanation() + finding.message


def test_a_file_that_cannot_be_parsed_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\nimport threading\nlock = threading.Lock()\nlock.acquire(\n")
    (tmp_path / "b.py").write_text(
        "import a\n" + BASE + "\n    def again(self):\n        with self.lock:\n            self.flush()\n"
    )
    report = check_paths([tmp_path], Options(cache=False))
    assert {f.rule for f in report.findings} == {"PC001", "PC103"}
    assert not report.failed


def test_a_large_program_is_read_file_by_file_and_the_cache_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "store.py").write_text(DERIVED.format(imports="from base import Base", base="Base"))
    first, again = (check_paths([tmp_path], Options()).findings for _ in range(2))
    assert [f.rule for f in first] == ["PC103"]
    assert [f.as_dict() for f in first] == [f.as_dict() for f in again]
    monkeypatch.setattr(together, "LARGEST", 10)
    assert check_paths([tmp_path], Options()).findings == []


ROWS = "def rows():\n    return range(9)\n"
SAVES = """
import torch
from rows import rows


def save(model):
    torch.save(model, "model.pt")


def train(model, rank):
    for row in rows():
        loss = model(row)
        if torch.isnan(loss):
            continue
        loss.backward()
    save(model)
"""
STARTS = """
import torch.distributed as dist
from rows import rows
from torch.nn.parallel import DistributedDataParallel


def start(model):
    dist.init_process_group("gloo")
    return DistributedDataParallel(model)
"""


def test_what_one_program_of_a_folder_starts_another_does_not() -> None:
    alone = {"rows.py": ROWS, "alone.py": SAVES + "\n\ntrain(print, 0)\n", "ranks.py": STARTS + "\n\nstart(print)\n"}
    assert programs(alone) == [tuple(sorted(alone))]
    assert found(alone) == []


def test_what_a_program_starts_holds_in_all_of_its_files() -> None:
    main = "import ranks\nimport alone\n\n\ndef main(model):\n    alone.train(ranks.start(model), 0)\n"
    texts = {"rows.py": ROWS, "alone.py": SAVES, "ranks.py": STARTS, "main.py": main}
    assert sorted(found(texts)) == [("alone.py", "PC502", 13), ("alone.py", "PC510", 7)]
