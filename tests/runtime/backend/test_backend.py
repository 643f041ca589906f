"""The torch.distributed backend: against gloo, DDP, FSDP2 and pipelines, deaths, mismatches, random programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runtime.backend import scenes
from tests.runtime.backend.worlds import play, start, stop

SCENES = Path(scenes.__file__)


def line_of(mark: str) -> int:
    (found,) = [number for number, line in enumerate(SCENES.read_text().splitlines(), 1) if line.endswith(f"# {mark}")]
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_operation_gives_what_gloo_gives(ranks: int, tmp_path: Path) -> None:
    play(scenes.collectives, ranks, tmp_path)


SOME = [
    scenes.letters,
    scenes.long_vectors,
    scenes.random_programs,
    scenes.any_order,
    pytest.param(scenes.very_long_vectors, marks=pytest.mark.soak),
    pytest.param(scenes.more_random_programs, marks=pytest.mark.soak),
]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("scene", SOME)
def test_between_two_and_three_ranks(scene: object, ranks: int, tmp_path: Path) -> None:
    play(scene, ranks, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "scene",
    [
        scenes.training,
        scenes.hooks,
        scenes.local_training,
        scenes.sharded_training,
        scenes.pipeline,
        scenes.objects,
        scenes.sparse,
        scenes.elsewhere,
        scenes.again,
        scenes.child,
        scenes.leaks_nothing,
    ],
    ids=lambda scene: scene.__name__,
)
def test_scene(scene: object, tmp_path: Path) -> None:
    play(scene, 2, tmp_path)  # type: ignore[arg-type]


def test_groups_of_some(tmp_path: Path) -> None:
    play(scenes.groups, 4, tmp_path)


def test_beside_nccl(tmp_path: Path) -> None:
    pool = start(scenes.training, 2, tmp_path, backend="cpu:paceline,cuda:nccl")
    try:
        for rank in pool:
            text = rank.end()
            assert rank.process.exitcode == 0, text
    finally:
        stop(pool)


@pytest.mark.parametrize("slip", ["reduction", "length", "dtype", "operation", "root"])
def test_a_mismatch_is_reported_on_all_ranks_with_all_lines(slip: str, tmp_path: Path) -> None:
    for text in play(getattr(scenes, f"slip_{slip}"), 3, tmp_path, fails=True):
        assert "CollectivesDiffer" in text, text
        assert "not like the others: rank 1" in text, text
        for rank in range(3):
            at = line_of(f"{slip}, {'second' if rank == 1 else 'first'}")
            assert re.search(rf"rank {rank}: .*, at .*{SCENES.name}:{at}\n", text), text


@pytest.mark.parametrize("scene", ["waits", "waits_for_a_letter", "trains_for_ever"])
def test_a_killed_rank_is_named_at_once(scene: str, tmp_path: Path) -> None:
    pool = start(getattr(scenes, scene), 3 if scene == "waits" else 2, tmp_path)
    try:
        deadline = time.monotonic() + 300
        while not all(rank.said.exists() and "ready" in rank.said.read_text() for rank in pool):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pool[1].process.kill()
        for rank in pool[:1] + pool[2:]:
            text = rank.end()
            assert rank.process.exitcode == 1
            assert re.search(r"RankGone: .* for rank 1, which is gone: its process \d+ has ended", text), text
            assert re.search("rank 1 was last in (all_reduce|broadcast) of", text)
    finally:
        stop(pool)


def test_a_failure_reaches_ddp_through_a_future_that_was_not_set(tmp_path: Path) -> None:
    pool = start(scenes.fails_late, 2, tmp_path)
    try:
        text = pool[0].end()
        assert pool[0].process.exitcode == 1
        assert re.search(r"RankGone: .* for rank 1, which is gone", text), text
    finally:
        stop(pool)


def test_a_rank_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    """As a program of its own, since what the interpreter does at its end matters."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist, paceline.runtime.backend\n"
        "rank = int(sys.argv[1])\n"
        f"dist.init_process_group('paceline', store=dist.FileStore({str(tmp_path / 'store')!r}, 2), rank=rank, "
        "world_size=2)\n"
        "if rank: raise ValueError('too hot')\n"
        "dist.all_reduce(torch.ones(3))\n"
    )
    pool = [subprocess.Popen([sys.executable, script, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)]
    said = [process.communicate(timeout=300)[1] for process in pool]
    assert "RankGone: rank 0 waited in all_reduce of 3 float32 (sum) at" in said[0]
    assert "script.py:5 for rank 1, which has left the group" in said[0]
    assert "rank 1: ended with ValueError: too hot" in said[0]


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    late, waiting = play(scenes.late, 2, tmp_path)
    assert "for rank 0, which did not come within" in waiting
    assert re.search(r"rank 0: is waiting in barrier at \S+ for rank 1\n", waiting)
    assert "rank 0 was last in barrier (its round 3 in this group; here it is round 4)" in waiting
    assert "failed before" in waiting
    assert late == ""


def test_waiting_can_be_aborted(tmp_path: Path) -> None:
    aborted, left = play(scenes.aborts, 2, tmp_path)
    assert "did not end: the process group was aborted" in aborted
    assert "for rank 0, which has left the group" in left


def test_a_rank_that_never_starts_is_named(tmp_path: Path) -> None:
    (text,) = play(scenes.never_starts, 1, tmp_path)
    assert "rank 0 waited in the making of a process group for rank 1" in text


def test_pytorch_finds_the_backend_without_an_import(tmp_path: Path) -> None:
    """By the entry point of pyproject.toml, as pip would write it."""
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    (entry,) = re.findall(r'\[project.entry-points."torch.backends"\]\n(.*)\n', project)
    installed = tmp_path / "installed-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[torch.backends]\n" + entry.replace('"', "") + "\n")
    program = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('paceline', store=dist.HashStore(), rank=0, world_size=1)\n"
        "print(dist.get_backend())\n"
    )
    paths = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "paceline\n", done.stderr
