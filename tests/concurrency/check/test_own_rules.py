"""Rules that a project adds in its pyproject.toml for its own libraries."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from paceline.concurrency.check.options import Options, read_options
from paceline.concurrency.check.run import check_paths
from paceline.errors import UsageError

LEASE = """
[[tool.paceline.check.rules]]
code = "PC901"
name = "lease-kept"
summary = "a lease that is not given back"
opens = ["ourlib.Pool.lease"]
closes = ["ourlib.Pool.give_back", ".release"]
"""
FLUSHED = """
[[tool.paceline.check.rules]]
code = "PC902"
name = "sent-unflushed"
summary = "a batch that is committed before it is flushed"
opens = ["ourlib.open_batch"]
owes = [".add"]
closes = [".flush"]
breach = [".commit"]
remedy = "flush the batch first"
"""


def found(folder: Path, rows: str, program: str, **options: object) -> list[tuple[str, int]]:
    """The rule and line of each finding of a project with these rows and one file."""
    (folder / "pyproject.toml").write_text(rows)
    (folder / "app.py").write_text(textwrap.dedent(program))
    report = check_paths([folder / "app.py"], read_options(folder, cache=False, **options))
    return [(finding.rule, finding.line) for finding in report.findings]


def using(body: str) -> str:
    """A program with a pool of a library whose source is not at hand, and a function that uses it."""
    return "import ourlib\n\npool = ourlib.Pool(4)\n\n\ndef use(work):\n" + textwrap.indent(
        textwrap.dedent(body), "    "
    )


@pytest.mark.parametrize(
    "body",
    [
        "lease = pool.lease()\nwork(lease.key)\npool.give_back(lease)\n",  # not if the work raises
        "lease = pool.lease()\nif lease.idle:\n    return None\npool.give_back(lease)\nreturn None\n",
        "lease = pool.lease()\nprint(lease.key)\n",  # never
        "lease = pool.lease()\ntry:\n    work(lease.key)\nexcept ValueError:\n    return\nlease.release()\n",
    ],
)
def test_a_duty_that_one_way_leaves_undone_is_found(body: str, tmp_path: Path) -> None:
    assert found(tmp_path, LEASE, using(body)) == [("PC901", 7)]


@pytest.mark.parametrize(
    "body",
    [
        "lease = pool.lease()\ntry:\n    work(lease.key)\nfinally:\n    pool.give_back(lease)\n",
        "lease = pool.lease()\ntry:\n    work(lease.key)\nfinally:\n    lease.release()\n",
        "with pool.lease() as lease:\n    work(lease.key)\n",
        "lease = pool.lease()\nwith lease:\n    work(lease.key)\n",
        "lease = pool.lease()\nreturn lease\n",  # its caller gives it back
        "lease = pool.lease()\nwork(lease)\n",  # and here, perhaps, what it was given to
        "work(pool.lease())\n",
        "lease = other.lease()\nwork(lease.key)\n",  # of what, nobody knows
    ],
)
def test_a_duty_that_is_done_or_handed_on_is_not(body: str, tmp_path: Path) -> None:
    assert found(tmp_path, LEASE, using(body)) == []


def test_a_call_that_must_come_later_is_found(tmp_path: Path) -> None:
    body = "batch = ourlib.open_batch()\nfor item in work:\n    batch.add(item)\n{}batch.commit()\n"
    assert found(tmp_path, FLUSHED, using(body.format(""))) == [("PC902", 10)]
    assert found(tmp_path, FLUSHED, using(body.format("batch.flush()\n"))) == []


def test_a_class_of_the_project_itself_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "ourlib.py").write_text(
        "class Pool:\n    def lease(self):\n        return object()\n\n    def give_back(self, lease):\n        pass\n"
    )
    program = using("lease = pool.lease()\nwork(lease.key)\npool.give_back(lease)\n").replace("Pool(4)", "Pool()")
    (tmp_path / "pyproject.toml").write_text(LEASE)
    (tmp_path / "app.py").write_text(program)
    report = check_paths([tmp_path], read_options(tmp_path, cache=False))
    assert [(f.rule, f.line) for f in report.findings] == [("PC901", 7)]


def test_its_findings_are_chosen_and_silenced_like_others(tmp_path: Path) -> None:
    program = using("lease = pool.lease()\nprint(lease.key)\n")
    assert found(tmp_path, LEASE, program, select=("PC1",)) == []
    assert found(tmp_path, LEASE, program, select=("PC9",)) == [("PC901", 7)]
    assert found(tmp_path, LEASE, program.replace("lease()", "lease()  # paceline: ignore[PC901]")) == []


def test_the_cache_knows_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(using("lease = pool.lease()\nprint(lease.key)\n"))
    assert not check_paths([tmp_path / "app.py"], Options()).findings
    (tmp_path / "pyproject.toml").write_text(LEASE)
    assert [f.rule for f in check_paths([tmp_path / "app.py"], read_options(tmp_path)).findings] == ["PC901"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (LEASE.replace("PC901", "PC101"), "PC900 to PC999"),
        (LEASE.replace("closes", "close"), "no key 'close'"),
        (LEASE.replace('opens = ["ourlib.Pool.lease"]\n', ""), "lacks opens"),
        (LEASE.replace('["ourlib.Pool.lease"]', '"ourlib.Pool.lease"'), "a list of texts"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        found(tmp_path, row, "import ourlib\n")
