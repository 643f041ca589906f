"""`paceline emit`: what it prints is what its page shows, and files are replaced only on request."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interfaces.cli.conftest import Command

PAGE = (Path(__file__).parents[3] / "docs" / "internals" / "schedulers.md").read_text()
SHOWN = re.findall(r"<!-- emit: (.*?) -->\n```\w+\n(.*?)```", PAGE, re.S)


def test_the_page_shows_each_kind_of_file() -> None:
    assert {" ".join(words.split()[:1]) for words, _ in SHOWN} == {"slurm", "kubernetes", "docker"}


@pytest.mark.parametrize(("words", "shown"), SHOWN, ids=[words for words, _ in SHOWN])
def test_what_the_page_shows_is_what_is_written(command: Command, words: str, shown: str) -> None:
    done = command("emit", *shlex.split(words))
    assert (done.code, done.err) == (0, "")
    place = 0
    for part in shown.split("...\n"):
        assert part in done.out[place:], f"schedulers.md is not what `paceline emit {words}` writes:\n{part}"
        place = done.out.index(part, place) + len(part)


def test_a_file_is_replaced_only_on_request(folder: Path, command: Command) -> None:
    words = ["emit", "slurm", "job.py", "--plan", "ring", "--output", "job.sh"]
    done = command(*words)
    assert (done.code, done.out) == (0, "")
    first = (folder / "job.sh").read_text()
    assert first == command(*words[:-2]).out
    assert command(*words, "--workers", "3").code == 2
    assert (folder / "job.sh").read_text() == first
    assert command(*words, "--workers", "3", "--force").code == 0
    assert "ring:workers=3" in (folder / "job.sh").read_text()


def test_nodes_with_gpus_are_asked_for(folder: Path, command: Command) -> None:
    done = command("emit", "slurm", "job.py", "--plan", "ring", "--gpus", "2")
    assert (done.code, "#SBATCH --gpus-per-node=2\n" in done.out) == (0, True), done.err


def test_nothing_of_pytorch_is_imported(folder: Path) -> None:
    """A file for a cluster may be written on a machine that cannot train."""
    program = (
        "import sys; from paceline.interfaces.cli import main\n"
        "sys.argv[1:] = ['emit', 'kubernetes', 'job.py', '--plan', 'ring']\n"
        "try: main()\n"
        "except SystemExit: print(sorted({'torch', 'numpy', 'ray'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=300)
    assert "kind: RayJob" in done.stdout
    assert done.stderr == "[]\n"
