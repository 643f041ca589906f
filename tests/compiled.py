"""Libraries that tests compile: kept from one session to the next, by texts whose headers are compiled once."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.kernels import build
from paceline.kernels.printers import cpp

MOST = 1 << 30  # bytes: texts that change leave libraries behind


@contextlib.contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Let one process at a time into the block, by a lock that ends with the process."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keep libraries in a folder, by their text, the compiler and its flags, as a user's cache does.

    So a session compiles what no earlier one has. Compilers are children that inherit the environment.
    """
    with one_at_a_time(folder / "lock"):
        if sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) > MOST:
            for each in folder.iterdir():
                shutil.rmtree(each, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_CACHE", str(folder))
        if "CXX" not in os.environ and shutil.which("g++"):
            with one_at_a_time(folder / "lock"):
                header = precompiled(folder, build.FLAGS, unoptimised(build.FLAGS))
            patch.setenv("CXX", f"g++ -include {header}")
            build.compiler.cache_clear()
        yield
    build.compiler.cache_clear()


def precompiled(folder: Path, *wanted: tuple[str, ...]) -> Path:
    """The headers of every text, which take half the time of compiling a small one; for each of these flags."""
    text = cpp.part("prelude").partition("\n\n")[0] + "\n"
    compiler = build.compiler()
    more = ("-march=native", *(("-fopenmp",) if compiler.openmp else ()))
    key = hashlib.sha256(repr((text, wanted, more, compiler.version, build.abilities())).encode()).hexdigest()
    header = folder / f"headers-{key[:16]}" / "headers.h"
    if header.exists():
        return header
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder)) / "headers.h"  # one that was interrupted is not taken for a whole one
    draft.write_text(text)
    (draft.parent / "headers.h.gch").mkdir()
    for number, flags in enumerate(wanted):
        binary = draft.parent / "headers.h.gch" / str(number)
        command = ["g++", *flags, *more, "-x", "c++-header", str(draft), "-o", str(binary)]
        subprocess.run([word for word in command if word != "-shared"], check=True)
    draft.parent.rename(header.parent)
    return header


def unoptimised(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("-O0" if flag == "-O3" else flag for flag in flags)
