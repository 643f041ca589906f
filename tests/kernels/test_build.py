"""Machine code is kept: whole or not at all, and elsewhere where only others, or others too, can write the cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from paceline import user_cache
from paceline.errors import JobWarning
from paceline.kernels import CannotFuse, build, fuse
from paceline.kernels.printers import cpp
from tests.scripts import finish, start

TEXT = 'extern "C" int answer() { return 42; }\n'
BAD = 'extern "C" int answer() { return 666; }\n'
SGD = partial(torch.optim.SGD, lr=0.1)


@pytest.mark.parametrize("length", [0, 20, 1000, 8000])
def test_a_file_that_was_cut_short_is_made_anew(length: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "whole"))
    _, file, cached = build.library(TEXT)
    assert not cached
    cut = tmp_path / "cut" / "kernels" / file.name
    cut.parent.mkdir(parents=True)
    cut.write_bytes(file.read_bytes()[:length])
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cut"))
    loaded, again, cached = build.library(TEXT)
    assert (loaded.answer(), again, cached) == (42, cut, False)
    assert build.library(TEXT)[2]


def test_where_the_cache_cannot_be_written_a_process_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "no-folder").write_text("")
    script = tmp_path / "script" / "script.py"
    script.parent.mkdir()
    script.write_text(
        "from paceline.kernels import build\n"
        f"loaded, file, cached = build.library({TEXT!r})\n"
        f"again = build.library({TEXT!r})\n"
        "print(loaded.answer(), file.parent, cached, again[1:] == (file, True))\n"
    )
    (done,) = finish([start(script, PACELINE_CACHE=str(tmp_path / "no-folder"), TMPDIR=str(tmp_path))])
    answer, folder, *rest = done.out.split()
    assert (answer, rest) == ("42", ["False", "True"]), done.err
    assert "every process compiles it again: set PACELINE_CACHE to a folder that can be written by you" in done.err
    assert not Path(folder).exists()  # it goes with the process
    assert {each.name for each in tmp_path.iterdir()} == {"no-folder", "script"}


LAYER = """
#include <cstring>
typedef float X __attribute__((vector_size(32)));
static inline __attribute__((always_inline)) X wide(const float* from) {
    X x;
    std::memcpy(&x, from, sizeof x);
    return x;
}
static inline __attribute__((always_inline)) float sum(const X& x) {
    float part[8];
    std::memcpy(part, &x, sizeof x);
    for (int half = 4; half; half /= 2)
        for (int l = 0; l < half; l++) part[l] += part[l + half];
    return part[0];
}
struct Group { float *arena, *weights; };
static __attribute__((noinline)) void layer(Group& g) {
    float* const weights = g.weights + 144;
    const X x = wide(g.arena + 400);
    for (int o = 0; o < 24; o += 2) {
        const X one = wide(weights + o * 8), other = wide(weights + o * 8 + 8);
        g.arena[o] = g.weights[o + 336] + sum(x * one);
        g.arena[o + 1] = g.weights[o + 337] + sum(x * other);
    }
}
extern "C" float answer() {
    static float arena[408], weights[360];
    for (float& number : arena) number = 1;
    for (float& number : weights) number = 1;
    Group g{arena, weights};
    layer(g);
    return arena[5];
}
"""


def test_a_function_that_stores_what_it_computes_is_called() -> None:
    """Where the processor has AVX2, gcc 12 removes the call if it may take addresses for null pointers."""
    answer = build.library(LAYER)[0].answer
    answer.restype = ctypes.c_float
    assert answer() == 9


# --- long texts ---

PARTS = f"""{build.TWO_PARTS}
int half();
#if PART == 1
int half() {{ return 21; }}
#else
extern "C" int answer() {{ return 2 * half(); }}
#endif
"""


def test_two_parts_of_a_text_become_one_library() -> None:
    assert build.library(PARTS)[0].answer() == 42


@pytest.mark.parametrize("fault", ["return 21", "return 2 * half()"])
def test_a_fault_in_either_part_is_named(fault: str) -> None:
    with pytest.raises(build.CannotCompile, match="nowhere"):
        build.library(PARTS.replace(fault, "return nowhere"))


def test_a_network_has_the_same_bits_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.rand(16, 8), torch.randint(3, (16,))
    model, results = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)), []
    for length in (0, 10**9):
        monkeypatch.setattr(cpp, "LONG", length)
        network = fuse(model, nn.CrossEntropyLoss(), SGD, 16, threads=1)
        loss, gradients = network.loss_and_gradients(x, y)
        assert network.compiled().source.startswith(build.TWO_PARTS) == (length == 0)
        results.append((loss, [gradient.tolist() for gradient in gradients.values()]))
    assert results[0] == results[1]


# --- a cache that other users can write ---


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache; what is known of other caches is forgotten."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "shared"))
    build.compiler()  # with a note of its own
    monkeypatch.setattr(build, "_elsewhere", {})
    monkeypatch.setattr(build, "_own", lambda: tmp_path / "own")
    yield tmp_path / "shared" / "kernels"
    build._warn_once.cache_clear()


@pytest.fixture(scope="module")
def bad(common: Path) -> bytes:
    """The machine code of another library."""
    code = build.kept(build.library(BAD)[1])
    assert code is not None
    return code


def plant(file: Path, code: bytes) -> None:
    """What somebody does who knows how files are sealed: another library, under this name."""
    user_cache.write(file, code + hashlib.sha256(f"{file.name}\0".encode() + code).digest())


def file_of(text: str, folder: Path) -> Path:
    """Where the machine code of a text lies in a cache of its user's own."""
    _, file, _ = build.library(text)
    assert file.parent == folder
    return file


@pytest.mark.parametrize("way", ["folder", "file", "strangers folder", "strangers file", "link"])
def test_machine_code_that_another_user_may_have_written_is_not_loaded(
    way: str, shared: Path, bad: bytes, tmp_path: Path
) -> None:
    if way.startswith("strangers") and os.geteuid():
        pytest.skip("only root can act as another user")
    file = file_of(TEXT, shared)
    plant(file, bad)
    assert build.library(TEXT)[0].answer() == 666  # as its own user could
    if way == "link":
        file.rename(tmp_path / file.name)
        file.symlink_to(tmp_path / file.name)
    elif way in ("folder", "file"):
        (file if way == "file" else shared).chmod(0o777)
    else:
        os.chown(file if way == "strangers file" else shared, 65534, 65534)
    if way.endswith("folder"):
        with pytest.warns(
            JobWarning, match="compiled code cannot be kept in .* every process compiles it again"
        ) as told:
            loaded = [build.library(text)[0].answer() for text in (TEXT, TEXT + "\n", TEXT)]
        assert (loaded, len(told)) == ([42] * 3, 1)  # one message
    else:  # in a folder of its user's own such a file is replaced
        assert (build.library(TEXT)[0].answer(), file.is_symlink(), file.stat().st_mode & 0o777) == (42, False, 0o600)
        assert build.library(TEXT)[2]


def test_a_library_under_the_name_of_another_is_compiled_anew(shared: Path) -> None:
    file, other = file_of(TEXT, shared), file_of(BAD, shared)
    other.replace(file)
    assert (build.library(TEXT)[0].answer(), build.library(TEXT)[2]) == (42, True)


def test_the_bytes_that_were_checked_are_loaded(shared: Path, bad: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_of(TEXT, shared)
    check = user_cache.content

    def exchanged(descriptor: int) -> bytes:
        content = check(descriptor)
        plant(file, bad)
        return content

    monkeypatch.setattr(user_cache, "content", exchanged)
    assert build.library(TEXT)[0].answer() == 42
    monkeypatch.undo()


def test_libraries_that_are_loaded_by_the_same_descriptor_are_not_mistaken(shared: Path) -> None:
    texts = [f'extern "C" int answer() {{ return {number}; }}\n' for number in range(3)]
    assert [build.library(text)[0].answer() for text in (*texts, *texts)] == [0, 1, 2, 0, 1, 2]


# --- what would lead a text astray, or to numbers that PyTorch would not give ---


def network(*more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), *more, nn.Linear(5, 4))


@pytest.mark.usefixtures("quickly_compiled")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.zeros(20)}, "class numbers, which are whole"),
        ({"order": torch.ones(20, dtype=torch.bool)}, "samples' numbers, in a row"),
        ({"order": torch.arange(20).view(4, 5)}, "samples' numbers, in a row"),
        ({"model": network(nn.Dropout(0.5)).eval()}, "in evaluation mode"),
        ({"model": network(nn.BatchNorm1d(5)).eval()}, "in evaluation mode"),
        ({"model": network(nn.BatchNorm1d(5)), "batch": 19}, "leave one sample alone"),
        ({"model": nn.Unflatten(1, (2, 3))}, "parameters of type none"),
        (
            {"model": nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3))), "y": torch.zeros(20, dtype=torch.long)},
            r"classes of shape \(3,\) per sample",
        ),
        ({"loss": nn.MSELoss(), "y": torch.zeros(20)}, r"targets of shape \(\), for outputs of shape \(4,\)"),
        ({"batch": 2.5}, "not a whole number"),
        ({"x": torch.tensor(1.0)}, "first dimension is the samples'"),
        ({"x": torch.randn(20)}, "gets 0 features"),
    ],
)
def test_what_cannot_be_trained_as_pytorch_would_is_refused(change: dict[str, object], message: str) -> None:
    given = {"model": network(), "loss": nn.CrossEntropyLoss(), "batch": 8, "x": torch.randn(20, 6)}
    given |= {"y": torch.randint(4, (20,)), "order": torch.arange(20)} | change

    def trained() -> None:
        fused = fuse(given["model"], given["loss"], SGD, given["batch"])  # type: ignore[arg-type]
        fused.train_epoch(given["x"], given["y"], given["order"])  # type: ignore[arg-type]

    with pytest.raises(CannotFuse, match=message):
        trained()


COMPILER = """#!/bin/sh
case "$*" in
  *--version*) echo slow 1 ;;
  *try.cpp*) exit 1 ;;
  *) touch $TMPDIR/own; sleep 400 & echo $! > STARTED.draft; mv STARTED.draft STARTED; wait ;;
esac
"""


def test_a_text_that_several_need_at_once_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting, calls = tmp_path / "counting", tmp_path / "calls"
    counting.write_text(f'#!/bin/sh\ncase "$*" in *text.cpp*) echo >> {calls}; sleep 0.5;; esac\nexec g++ "$@"\n')
    counting.chmod(0o700)
    monkeypatch.setenv("CXX", str(counting))
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    build.compiler.cache_clear()
    try:
        with ThreadPoolExecutor(3) as pool:
            files = {file for _, file, _ in pool.map(build.library, [TEXT] * 3)}
    finally:
        build.compiler.cache_clear()
    assert len(files) == 1
    assert len(calls.read_text().splitlines()) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_compiler_and_none_of_its_files_outlives_its_process(how: signal.Signals, tmp_path: Path) -> None:
    """A compiler starts others, which no signal to it reaches."""
    slow, started = tmp_path / "slow", tmp_path / "started"
    slow.write_text(COMPILER.replace("STARTED", str(started)))
    slow.chmod(0o700)
    script = tmp_path / "script.py"
    script.write_text(f"from paceline.kernels import build\nbuild.library({TEXT!r})\n")
    running = start(script, CXX=str(slow), PACELINE_CACHE=str(tmp_path / "cache"), TMPDIR=str(tmp_path))
    try:
        end = time.monotonic() + 300
        while not started.exists():
            assert running.process.is_alive()
            assert time.monotonic() < end
            time.sleep(0.01)
        child = psutil.Process(int(started.read_text()))
        assert running.process.pid is not None
        os.kill(running.process.pid, how)
        running.end(300)
    finally:
        running.stop()
    psutil.wait_procs([child], 300)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    # What a killed process leaves lies where the next compilation of the text removes it.
    left = {str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("own")}
    assert all(place.startswith("cache/") for place in left)
    assert bool(left) == (how is signal.SIGKILL)
    assert not list(tmp_path.glob("paceline-*"))
