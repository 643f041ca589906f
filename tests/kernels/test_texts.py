"""Texts of random networks are clean under sanitizers, and all compilers make the same numbers of them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from paceline.kernels import build
from tests.kernels.sanitized import forms, in_child, networks, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers' libraries are Linux's")
CLANG = next(filter(shutil.which, ("clang++", "clang++-14")), "")
#: Sets of flags that make the same numbers: of what gcc concludes from the bounds of arrays nothing may depend.
SETS = [
    *(("g++", level, own) for level in ("-O0", "-O2", "-O3") for own in ("", "-fno-aggressive-loop-optimizations")),
    *(("clang++", level, "") for level in ("-O0", "-O2", "-O3")),
]
QUICK = (("g++", "-O2", ""), ("g++", "-O2", "-fno-aggressive-loop-optimizations"), ("clang++", "-O0", ""))


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [(5, 0, 5), *(pytest.param(520, part, part + 54, marks=pytest.mark.soak) for part in range(0, 540, 54))],
)
def test_random_networks_are_clean_under_sanitizers(count: int, first: int, last: int, common: Path) -> None:
    """Of every layer, in every width of vectors, trained, evaluated and in stacks; and their numbers are PyTorch's."""
    done = in_child(["-m", "tests.kernels.sanitized", *map(str, (count, first, last))], common / f"sanitized-{first}")
    assert (done.returncode, done.stdout.startswith("clean")) == (0, True), done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(
    ("chosen", "many"),
    [
        *((chosen, False) for chosen in SETS if chosen in QUICK),
        *(pytest.param(chosen, True, marks=pytest.mark.soak) for chosen in SETS),
    ],
)
def test_every_compiler_makes_the_numbers_of_pytorch(
    chosen: tuple[str, str, str], many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every level of optimisation, to 1e-10 in float64, and to what PyTorch's own float32 is wrong by in float32."""
    name, level, own = chosen
    if name == "clang++":
        if not CLANG:
            pytest.skip("clang is not installed")
        monkeypatch.setenv("CXX", CLANG)
    build.compiler.cache_clear()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, level, *filter(None, [own])))
    choices, first = forms(), SETS.index(chosen)
    some = networks(40) if many else networks(12)[first : first + 1]
    try:
        assert list(sweep(some, first, lambda at: choices[at % len(choices)])) == []
    finally:
        build.compiler.cache_clear()


@pytest.mark.soak
@pytest.mark.parametrize("way", ["sanitizers", "numbers", "guard"])
def test_a_fault_in_any_printer_shows(way: str, tmp_path: Path) -> None:
    done = in_child(["-m", "tests.kernels.planted", way], tmp_path, watched=way == "sanitizers")
    shown = json.loads(done.stdout.splitlines()[-1])
    assert not shown.pop("nothing")
    assert len(shown) == 9
    assert all(shown.values()), (shown, done.stderr[-3000:])
