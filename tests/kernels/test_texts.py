"""Texts of random networks are clean under sanitizers, and all compilers make the same numbers of them."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from paceline.kernels import build
from tests.kernels.sanitized import WATCHED, in_child, networks, sweep

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the sanitizers' libraries are Linux's"),
    pytest.mark.timeout(3600),
]
CLANG = next(filter(shutil.which, ("clang++", "clang++-14")), "")
#: Sets of flags that make the same numbers: of what gcc concludes from the bounds of arrays nothing may depend.
SETS = [
    *(("g++", level, own) for level in ("-O0", "-O2", "-O3") for own in ("", "-fno-aggressive-loop-optimizations")),
    *(("clang++", level, "") for level in ("-O0", "-O2", "-O3")),
]
QUICK = (("g++", "-O2", ""), ("g++", "-O2", "-fno-aggressive-loop-optimizations"), ("clang++", "-O0", ""))
MANY = 40  # networks of a set
#: Generated code that other tests compare with PyTorch, or with the machines that it stands for.
OTHERS = {
    "library": "tests/kernels/test_library.py",
    "stacks": "tests/kernels/test_replicas.py",
    "steps": "tests/training/gradients/test_native_step.py",
    "servers": "tests/runtime/engines/test_native_server.py",
    "ranks": "tests/kernels/test_rank_gradients.py",
    "devices": "tests/kernels/test_cuda.py",
    "exchanges": "tests/runtime/engines/test_native_exchange.py",
    "updates": "tests/runtime/engines/test_native_updates.py",
    "pushes": "tests/runtime/engines/test_native_pushes.py",
}


@pytest.mark.parametrize(
    ("count", "first", "last", "flags"),
    [
        (30, 0, 30, (*WATCHED[:2], "-fsanitize=address", *WATCHED[3:])),  # whose texts compile sooner
        *(pytest.param(520, part, part + 54, WATCHED, marks=pytest.mark.soak) for part in range(0, 540, 54)),
    ],
)
def test_random_networks_are_clean_under_sanitizers(
    count: int, first: int, last: int, flags: tuple[str, ...], common: Path
) -> None:
    """Of every layer, in every width of vectors, trained, evaluated and in stacks; and their numbers are PyTorch's."""
    done = in_child(["-m", "tests.kernels.sanitized", *map(str, (count, first, last))], common, flags)
    assert (done.returncode, done.stdout.startswith("clean")) == (0, True), done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_other_generated_code_is_clean_under_sanitizers(name: str, common: Path) -> None:
    words = ["-m", "pytest", "-q", "-x", "-s", "-n", "0", "-p", "no:cacheprovider", "-m", "not soak"]
    done = in_child([*words, "-k", "not nvcc", OTHERS[name]], common)  # which does not bear the sanitizer's library
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


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
    first = SETS.index(chosen)
    some, first = (networks(MANY), MANY * first) if many else (networks(12)[first : first + 1], first)
    try:
        assert list(sweep(some, first)) == []
    finally:
        build.compiler.cache_clear()


#: What a way cannot find, and why.
PUBLISHED = "the published forms are measured, and train nothing of a user's: the guard leaves them out"
WORKERS = "what workers do with each other is compared by tests alone: a run would need a second one to compare with"
UNSEEN = {
    ("layers, reshape", "sanitizers"): "its numbers are seen in another shape, without a loop",
    ("layers, reshape", "numbers"): "the same",
    ("exchange.hpp, rows", "sanitizers"): "one number beyond a row is its pad, or the next row",
    ("exchange.hpp, mixtures", "numbers"): "the last number of a vector is a weight, which no mixture reads",
    ("numpy.py, loops", "guard"): "tests compare with it, and nothing is trained by it",
    **{(name, "guard"): PUBLISHED for name in ("study.py, outputs", "study.py, inputs", "study.py, parts of ranks")},
    **{(f"exchange.hpp, {name}", "guard"): WORKERS for name in ("sums", "rows", "mixtures")},
    **{(f"serve.hpp, {name}", "guard"): WORKERS for name in ("parameters", "clocks")},
}


@pytest.mark.parametrize(
    ("ways", "flags", "parts"),
    [
        ("sanitizers,numbers", WATCHED[:2], ("nests.py, sums", "memory.py")),
        pytest.param("sanitizers", WATCHED, (), marks=pytest.mark.soak),
        pytest.param("numbers", WATCHED[:1], (), marks=pytest.mark.soak),
    ],
)
def test_a_fault_in_any_printer_shows(ways: str, flags: tuple[str, ...], parts: tuple[str, ...], common: Path) -> None:
    """A loop that is off by one, in every printer and every kind of layer; and a pad that is missing."""
    done = in_child(["-m", "tests.kernels.planted", ways, *parts], common, flags)
    shown = json.loads(done.stdout.splitlines()[-1])
    assert not any(shown.pop("nothing").values())
    missed = {(name, way) for name, found in shown.items() for way, is_found in found.items() if is_found is not True}
    assert missed <= set(UNSEEN), (missed, done.stderr[-3000:])
