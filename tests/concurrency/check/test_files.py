"""No file stops the others: pipes, links to themselves, encodings, sizes, excluded files, and faults of the checker."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.concurrency.check import parallel
from paceline.concurrency.check.engine import Examined
from paceline.concurrency.check.options import LARGEST, Options, choose_files
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.reporting.formats import FORMATS
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.run import Report, check_paths

BAD = RULES["PC101"].bad


def check(*paths: Path, jobs: int = 1, exclude: tuple[str, ...] = ()) -> Report:
    return check_paths(paths, Options(cache=False, jobs=jobs, exclude=exclude))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "z.py").write_text(BAD)
    return tmp_path


def test_pipes_links_and_giants_are_named_and_the_rest_is_checked(tree: Path) -> None:
    os.mkfifo(tree / "pipe.py")
    (tree / "self.py").symlink_to("self.py")
    (tree / "loop").symlink_to(".")
    (tree / "giant.py").write_bytes(b"x = 1\n" * (LARGEST // 6 + 1))
    report = check(tree)
    assert [(f.path, f.rule) for f in report.findings] == [("a.py", "PC101"), ("self.py", "PC001"), ("z.py", "PC101")]
    assert {Path(skipped.path).name: skipped.why for skipped in report.skipped} == {
        "pipe.py": "a named pipe",
        "giant.py": "4 MiB, more than 4",
    }
    assert "2 passed over" in report.summary()


def test_named_files_that_are_no_programs_are_not_opened(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    report = check(tree / "pipe", Path(os.devnull), tree / "a.py")
    assert [skipped.why for skipped in report.skipped] == ["a device", "a named pipe"]
    assert [f.rule for f in report.findings] == ["PC101"]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"# coding: nonsense\nimport threading\n", "unknown encoding"),
        (b"import threading\nname = '\xff'\n", "line 2 is not utf-8"),
        (BAD.encode("utf-16"), "cannot be decoded"),
    ],
)
def test_what_python_cannot_decode_is_reported(tree: Path, raw: bytes, why: str) -> None:
    (tree / "odd.py").write_bytes(raw)
    (odd,) = [f for f in check(tree).findings if f.path == "odd.py"]
    assert odd.rule == "PC001"
    assert why in odd.message


def test_a_folder_called_build_is_checked_when_it_is_a_package_and_counted_otherwise(tree: Path) -> None:
    for name in ("build", "dist"):
        (tree / name).mkdir()
        (tree / name / "job.py").write_text(BAD)
    (tree / "build" / "__init__.py").touch()
    report = check(tree)
    assert [f.path for f in report.findings] == ["a.py", "build/job.py", "z.py"]
    assert [Path(skipped.path).name for skipped in report.skipped] == ["dist"]


def test_exclude_holds_for_named_files_too(tree: Path) -> None:
    report = check(tree / "a.py", tree / "z.py", exclude=("a.py",))
    assert [f.path for f in report.findings] == ["z.py"]
    assert [skipped.why for skipped in report.skipped] == ["excluded"]


def test_the_order_of_the_paths_makes_no_difference(tree: Path) -> None:
    files = [tree / "z.py", tree / "a.py"]
    assert [f.as_dict() for f in check(*files).findings] == [f.as_dict() for f in check(*reversed(files)).findings]


def test_each_file_is_chosen_once(tree: Path) -> None:
    (tree / "again.py").symlink_to("a.py")
    assert [file.name for file in choose_files([tree, tree / "a.py"]).files] == ["a.py", "z.py"]


def fail_in_a(path: str, text: str, rules: object) -> Examined:
    if path == "a.py":
        raise KeyError("x")
    return Examined([Finding("PC101", 1, 1, "f", "m", path=path)])


def test_a_fault_of_the_checker_is_no_finding_and_hides_none(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "examine", fail_in_a)
    report = check(tree)
    assert [f.path for f in report.findings] == ["z.py"]
    assert [failed.path for failed in report.failed] == ["a.py"]
    assert report.exit_code == 3
    assert "a.py: not checked, the checker failed: KeyError: 'x'" in report.summary()
    assert json.loads(FORMATS["json"](report))["failed"][0]["path"] == "a.py"
    (run,) = json.loads(FORMATS["sarif"](report))["runs"]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_several_processes_find_the_same(tree: Path) -> None:
    for number in range(20):
        (tree / f"more{number}.py").write_text(BAD)
    one, two = (FORMATS["json"](check(tree, jobs=jobs)) for jobs in (1, 2))
    assert one == two
    assert len(json.loads(one)["findings"]) == 22


@pytest.mark.parametrize("name", ["take", "begin", "enter", "free", "wait", "run", "build"])
def test_what_a_function_is_called_makes_no_difference(tree: Path, name: str) -> None:
    (tree / "a.py").write_text(
        "import threading\nA, B = threading.Lock(), threading.Lock()\n"
        f"def inner():\n    with A:\n        pass\ndef {name}():\n    with B:\n        inner()\n"
        f"def other():\n    with A:\n        with B:\n            pass\n"
        f"threading.Thread(target={name}).start()\nother()\n"
    )
    assert [f.rule for f in check(tree / "a.py").findings] == ["PC101"]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"x = 1\nname = 'a\0b'\n", 2),
        (b"x = " + b"(" * 5_000 + b")" * 5_000, 1),
        (b"x = " + b"-" * 100_000 + b"1\n", 1),
        (b"x = a" + b".b" * 100_000, 1),
        (b"if x: pass\n" + b"elif x: pass\n" * 20_000, 1),
        (b"x = " + b"1" * 5_000, 1),
        (b"x = 1\nclass (:\n", 2),
    ],
    ids=["null", "brackets", "minuses", "attributes", "branches", "digits", "syntax"],
)
@pytest.mark.parametrize("head", [b"", b"import threading\n"], ids=["about something else", "about threads"])
@pytest.mark.parametrize("given", [{}, {"select": ("PC5",)}, {"min_confidence": 0.99}, {"budget": 1}], ids=str)
def test_what_python_cannot_parse_is_never_clean(
    tree: Path, raw: bytes, line: int, head: bytes, given: dict[str, object]
) -> None:
    (tree / "a.py").write_bytes(head + raw)
    (tree / "z.py").write_text("x = 1\n")
    report = check_paths([tree], Options(cache=False, jobs=1, **given))  # type: ignore[arg-type]
    if given.get("budget") and head:
        assert [over.path for over in report.unwalked] == ["a.py"]  # named, and not called clean
        return
    (finding,) = report.findings
    assert (finding.path, finding.rule) == ("a.py", "PC001")
    assert finding.line in (line + head.count(b"\n"), 1)
    assert report.exit_code == 1


def test_a_null_byte_is_reported_at_its_line(tree: Path) -> None:
    (tree / "a.py").write_bytes(b"x = 1\ny = '\0'\n")
    assert [(f.line, f.rule) for f in check(tree / "a.py").findings] == [(2, "PC001")]


def test_a_folder_that_cannot_be_read_is_not_clean(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "closed").mkdir()
    (tree / "a.py").write_text("x = 1\n")
    (tree / "z.py").unlink()
    scandir = os.scandir

    def refuse(path: str) -> object:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    report = check(tree)
    assert [(f.path, f.rule, f.message) for f in report.findings] == [
        ("closed", "PC001", "cannot be read: Permission denied")
    ]
    assert report.exit_code == 1


def test_a_file_that_cannot_be_parsed_takes_no_finding_from_the_program_that_it_is_of(tree: Path) -> None:
    (tree / "base.py").write_text(
        "import threading\n\nclass Base:\n    def __init__(self):\n        self.lock = threading.Lock()\n\n"
        "    def flush(self):\n        with self.lock:\n            return 1\n"
    )
    (tree / "store.py").write_text(
        "from base import Base\n\nclass Store(Base):\n    def put(self):\n        with self.lock:\n"
        "            self.flush()\n"
    )
    paths = [tree / "base.py", tree / "store.py"]
    assert [(f.path, f.rule) for f in check(*paths).findings] == [("store.py", "PC103")]
    (tree / "broken.py").write_text("import store\nclass (:\n")
    found = [(f.path, f.rule) for f in check(*paths, tree / "broken.py").findings]
    assert found == [("broken.py", "PC001"), ("store.py", "PC103")]
