"""A mistake that a file repeats on one object is one finding, which names all of its places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.concurrency.check.engine import one_each
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.reporting.findings import Finding, write_baseline
from paceline.concurrency.check.reporting.formats import FORMATS
from paceline.concurrency.check.run import Report, check_paths

METHOD = """
    def {name}(self, x):
        self.{lock}.acquire(){mark}
        x.{name}()
        self.{lock}.release()
"""
FUNCTION = """
def {name}(x):
    {lock}.acquire()
    x.{name}()
    {lock}.release()
"""


def of_class(name: str, *methods: str, mark: str = "") -> str:
    made = f"\nclass {name}:\n    def __init__(self):\n        self._lock = self._other = threading.Lock()\n"
    return made + "".join(METHOD.format(name=method, lock="_lock", mark=mark) for method in methods)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(*texts: str, **options: str) -> Report:
    file = Path("pool.py")
    file.write_text("import threading\n" + "".join(texts))
    return check_paths([file], Options(cache=False, **options))  # type: ignore[arg-type]


def functions(found: list[Finding]) -> list[list[str]]:
    return [[place.function for place in finding.places] for finding in found]


def test_places_of_one_lock_are_one_finding() -> None:
    (found,) = checked(of_class("Pool", "push", "get", "size")).findings
    assert functions([found]) == [["Pool.push", "Pool.get", "Pool.size"]]
    assert found.elsewhere == f"also at lines {', '.join(str(place.line) for place in found.further)}"
    assert len({place.fingerprint for place in found.places}) == 3


def test_other_locks_classes_and_locals_are_findings_of_their_own() -> None:
    other = METHOD.format(name="other", lock="_other", mark="")
    same_name = "".join(
        FUNCTION.format(name=name, lock="lock").replace("(x):", "(x):\n    lock = x.lock") for name in "ab"
    )
    module = "lock_of_all = threading.Lock()\n" + "".join(FUNCTION.format(name=n, lock="lock_of_all") for n in "cd")
    found = checked(module, of_class("Pool", "push", "get"), other, of_class("Store", "push"), same_name).findings
    assert functions(found) == [["c", "d"], ["Pool.push", "Pool.get"], ["Pool.other"], ["Store.push"], ["a"], ["b"]]


def test_a_finding_of_another_file_is_another_one(here: Path) -> None:
    for name in ("a.py", "b.py"):
        (here / name).write_text("import threading\n" + of_class("Pool", "push", "get"))
    found = check_paths([here], Options(cache=False)).findings
    assert [(f.path, len(f.further)) for f in found] == [("a.py", 1), ("b.py", 1)]


def test_what_a_comment_or_a_baseline_says_of_one_place_holds_for_that_place(here: Path) -> None:
    ignored = of_class("Pool", "push", mark="  # paceline: ignore[PC102]")
    rest = "".join(METHOD.format(name=name, lock="_lock", mark="") for name in ("get", "size"))
    (found,) = checked(ignored, rest).findings
    assert functions([found]) == [["Pool.get", "Pool.size"]]
    write_baseline(here / "known.json", [found])
    again = checked(ignored, rest, baseline="known.json")
    assert (again.findings, again.known) == ([], 1)
    new = checked(ignored, rest, METHOD.format(name="new", lock="_lock", mark=""), baseline="known.json")
    assert (functions(new.findings), new.known) == ([["Pool.new"]], 1)


def test_a_mistake_is_as_likely_as_its_likeliest_place() -> None:
    rows = [(3, 0.4), (9, 0.8), (5, 0.6)]
    (found,) = one_each(
        Finding("PC102", line, 1, f"f{line}", "", confidence=c, subject="Pool._lock") for line, c in rows
    )
    assert (found.line, found.confidence, [place.line for place in found.further]) == (3, 0.8, [5, 9])


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_names_the_further_places(form: str) -> None:
    report = checked(of_class("Pool", "push", "get", "size"))
    told = FORMATS[form](report)
    (found,) = report.findings
    further = [place.line for place in found.further]
    if form == "sarif":
        (result,) = json.loads(told)["runs"][0]["results"]
        lines = [place["physicalLocation"]["region"]["startLine"] for place in result["relatedLocations"]]
        assert lines == further
    elif form == "json":
        (row,) = json.loads(told)["findings"]
        assert [place["line"] for place in row["also_at"]] == further
    else:
        assert found.elsewhere in told


def test_the_cache_keeps_what_a_finding_is_about(here: Path) -> None:
    (here / "pool.py").write_text("import threading\n" + of_class("Pool", "push", "get"))
    first, second = (check_paths([here], Options()).findings for _ in range(2))
    assert functions(first) == functions(second) == [["Pool.push", "Pool.get"]]
