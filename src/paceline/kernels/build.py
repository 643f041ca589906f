"""Text becomes a shared library: found in the cache, or compiled by the compiler at hand.

A library is cached by its text, the compiler and its version, the flags and the CPU's own abilities: a library made
for this machine may be an illegal instruction on the next. Several processes may build the same one; the last to
finish renames its file over the others', which are the same. A file ends in the digest of its name and of all before,
so one that was cut short or renamed is compiled again. If the cache cannot be written, or other users can write there
(`user_cache`), the file lies in a folder of this process as long as it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline import user_cache
from paceline.errors import JobError, JobWarning
from paceline.instruction_sets import ALL, max_cpu_isa, processor_flags

ABI = 2  # of the structs that text and Python share
#: gcc 12 writes an address as a sum whose base is zero, then takes it for a null pointer, and so removes the call of a
#: function that does nothing but store what it reads from there: a layer was not computed. It does neither with this.
KEEPS_CALLS = "-fno-delete-null-pointer-checks"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    KEEPS_CALLS,
)
#: A shell that runs a command, and kills it with all that it has started when standard input ends, as it does when the
#: process at the other end is gone: a compiler is a process that starts others.
ENDS_WITH_PARENT = 'exec 3<&0 </dev/null; (read _ <&3; kill -9 0) 2>&- & "$@" 3<&-; made=$?; kill -9 $!; exit $made'
PATIENCE = 300.0  # seconds for one text
COMPILING = 2.0  # seconds for one text, about
TWO_PARTS = "#define PARTS 2"  # what a text begins with that is compiled in two parts side by side
DIGEST = 32  # bytes


class NoCompiler(JobError):
    """There is no C++ compiler."""


class CannotCompile(JobError):
    """A compiler refused a generated text."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler and what it can do."""

    command: tuple[str, ...]
    version: str
    openmp: bool

    def __str__(self) -> str:
        return f"{' '.join(self.command)} ({self.version}{'' if self.openmp else ', without OpenMP: one thread'})"


@cache
def compiler() -> Compiler:
    """$CXX, g++, clang++, c++, or the `ziglang` wheel."""
    for name in filter(None, (os.environ.get("CXX", ""), "g++", "clang++", "c++")):
        command = tuple(name.split())
        if (file := shutil.which(command[0])) and (candidate := _known(command, file)).version:
            return candidate
    wheel = importlib.util.find_spec("ziglang")
    if wheel is not None and wheel.origin:  # its OpenMP does not link
        return _known((sys.executable, "-m", "ziglang", "c++"), wheel.origin)
    raise NoCompiler(
        "no C++ compiler was found ($CXX, g++, clang++, c++, the ziglang wheel), which compute='fused' needs: install "
        "one, as by `pip install ziglang`, or use compute='autograd', which is PyTorch"
    )


def _known(command: tuple[str, ...], file: str) -> Compiler:
    """Version and abilities of a compiler, which are asked for once as long as its file stays the same."""
    executable = Path(file).resolve()
    key = json.dumps([*command, str(executable), executable.stat().st_mtime_ns])
    note = folder() / f"compiler-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    try:
        version, openmp = json.loads(user_cache.read(note))
    except (OSError, ValueError):
        version, openmp = _version(command), _openmp(command)
        with contextlib.suppress(OSError):
            user_cache.write(note, json.dumps([version, openmp]).encode())
    return Compiler(command, version, openmp)


def _version(command: tuple[str, ...]) -> str:
    """The first line of what the compiler says of itself; empty if it does not start."""
    try:
        process = subprocess.run((*command, "--version"), capture_output=True, text=True, timeout=60)
    except OSError:
        return ""
    return process.stdout.splitlines()[0] if process.returncode == 0 and process.stdout else ""


def _openmp(command: tuple[str, ...]) -> bool:
    """Whether the compiler can link a program that uses OpenMP."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as place:
        source = Path(place) / "try.cpp"
        source.write_text("#include <omp.h>\nint main() { return omp_get_num_threads() - 1; }\n")
        try:
            process = subprocess.run((*command, "-fopenmp", source, "-o", source.with_suffix("")), capture_output=True)
        except OSError:
            return False
        return process.returncode == 0


@cache
def abilities() -> str:
    """The CPU's instruction sets, as the kernel names them, up to the newest that may compute."""
    flags = ALL[newest].flags if (newest := max_cpu_isa()) else processor_flags()
    return " ".join(flags) or platform.processor() or platform.machine()


def processor_options() -> tuple[str, ...]:
    """The compiler's options for the instructions of this CPU, up to the newest that may compute."""
    if newest := max_cpu_isa():
        return tuple(f"-m{flag}" for flag in ALL[newest].flags)
    return ("-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native",)


def folder() -> Path:
    """The folder of all machine code: in $PACELINE_CACHE, or in the user's cache."""
    base = os.environ.get("PACELINE_CACHE")
    return (Path(base) if base else user_cache.folder()) / "kernels"


_elsewhere: dict[Path, Path] = {}  # what could not be kept in the cache: where it lies


@cache
def _own() -> Path:
    """A folder that is removed when this process ends."""
    directory = tempfile.mkdtemp(prefix="paceline-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def keep(file: Path, content: bytes, source: Path, text: str) -> Path:
    """Writes machine code, its text beside it; the file that it lies in from now on."""
    try:
        user_cache.write(source, text.encode())
        user_cache.write(file, content + _digest(file, content))
        return file
    except OSError as error:
        _warn_once(file.parent, error.strerror)
        _elsewhere[file] = _own() / file.name
        user_cache.write(_own() / source.name, text.encode())
        user_cache.write(_elsewhere[file], content + _digest(file, content))
        return _elsewhere[file]


@cache
def _warn_once(place: Path, reason: str) -> None:
    """Says that a folder cannot be the cache."""
    warnings.warn(
        f"compiled code cannot be kept in {place}: {reason}; every process compiles it again: set PACELINE_CACHE to a "
        "folder that can be written by you alone",
        JobWarning,
        stacklevel=3,
    )


def _digest(file: Path, content: bytes | memoryview) -> bytes:
    """What the content of a file of this name ends in."""
    digest = hashlib.sha256(f"{file.name}\0".encode())
    digest.update(content)
    return digest.digest()


def path_of(name: str) -> Path:
    """Where a file of machine code is looked for."""
    return _elsewhere.get(folder() / name, folder() / name)


def kept(file: Path) -> bytes | None:
    """The machine code of a file, or None if it is missing, was cut short, or may be another user's."""
    with contextlib.suppress(OSError):
        content = user_cache.read(file)
        return content[:-DIGEST] if _sealed(file, content) else None
    return None


def _sealed(file: Path, content: bytes) -> bool:
    """Whether the content of a file is what was written under its name."""
    return _digest(file, memoryview(content)[:-DIGEST]) == content[-DIGEST:]


_loads = itertools.count()


def _loaded(file: Path) -> ctypes.CDLL | None:
    """Loads the machine code of a file through the descriptor by which it was checked; None as of `kept`."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(user_cache.opened(file))
            if not _sealed(file, user_cache.content(descriptor)):
                return None
        except OSError:
            return None
        # The dynamic linker takes a path that it knows for the library that it loaded by it, and numbers of descriptors
        # come again: every path is another one, by the bits of a number as `.` and nothing.
        path = "/".join("." * int(bit) for bit in f"{next(_loads):b}")
        return ctypes.CDLL(f"/proc/self/fd/{path}/{descriptor}")


def _place_of(text: str, extra: tuple[str, ...] = ()) -> tuple[Compiler, tuple[str, ...], Path]:
    """Return the compiler of a text, its flags, and the file of the library that it makes."""
    toolchain = compiler()
    flags = (*FLAGS, *processor_options(), *extra)
    if toolchain.openmp:
        flags = (*flags, "-fopenmp")
    key = "\0".join((str(ABI), text, *toolchain.command, toolchain.version, *flags, abilities()))
    return toolchain, flags, path_of(f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so")


def is_compiled(text: str) -> bool:
    """Return whether a text lies compiled in the cache."""
    return _place_of(text)[2].is_file()


def library(text: str, extra: tuple[str, ...] = ()) -> tuple[ctypes.CDLL, Path, bool]:
    """Compiles a text, or finds it in the cache: (the library, its file, whether it was in the cache)."""
    toolchain, flags, file = _place_of(text, extra)
    if (functions := _loaded(file)) is not None:
        return functions, file, True
    with _alone(file) as place:
        if (functions := _loaded(file)) is not None:
            return functions, file, True
        file = _compile(toolchain, text, flags, file, place)
    if (functions := _loaded(file)) is None:
        raise CannotCompile(f"{file} was changed while it was being loaded; compute='autograd' goes on without")
    return functions, file, False


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[Path]:
    """Let one process at a time compile a text, and yield the folder in which it does.

    All workers of a run need the same texts at the same moment. The lock ends with its process; one that is stopped is
    not waited for longer than a compiler. The folder lies beside the lock, so that what a killed process leaves there
    is removed by the next, and not never, as it would be in /tmp.
    """
    with contextlib.ExitStack() as stack:
        place = _locked_folder(file, stack)
        yield place or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-")))


def _locked_folder(file: Path, stack: contextlib.ExitStack) -> Path | None:
    """Take the lock of a library, for as long as a stack is open; None without it, or in a cache not to be written."""
    with contextlib.suppress(OSError):
        lock = file.with_name(f"{file.name[:2]}.lock")  # of a few texts, so that there are not more and more files
        user_cache.append(lock, b"")
        descriptor = stack.enter_context(user_cache.opened(lock, os.O_RDWR))
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                place = lock.with_suffix(".draft")
                stack.callback(shutil.rmtree, place, ignore_errors=True)
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir(mode=0o700)
                return place
            time.sleep(0.01)
    return None


def _run(commands: Sequence[tuple[str, ...]], place: Path) -> str:
    """Run compilers side by side; return what those say that fail. None outlives this process, however that ends.

    What they write for themselves lies in the folder too, since one that is killed does not remove it.
    """
    environment = {**os.environ, "TMPDIR": str(place)}
    end, write_end = os.pipe()
    running = list[subprocess.Popen[str]]()
    try:
        for command in commands:
            running.append(
                subprocess.Popen(
                    ("sh", "-c", ENDS_WITH_PARENT, "sh", *command),
                    stdin=end,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            )
        messages = [process.communicate(timeout=PATIENCE)[1] for process in running]
        codes = [process.returncode for process in running]
        return "".join(message or f"exit code {code}" for code, message in zip(codes, messages, strict=True) if code)
    finally:
        for process in running:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            with process:
                pass
        os.close(end)
        os.close(write_end)


def compiling_seconds(text: str) -> float:
    """Seconds that compilers take for a text on cores of their own, about; g++ 12, on 17 kinds of networks."""
    by_one = 0.6 + len(text) / 130_000
    side_by_side = text.startswith(TWO_PARTS) and len(os.sched_getaffinity(0)) > 1
    return 0.25 + by_one / 2 if side_by_side else by_one


def _compile(toolchain: Compiler, text: str, flags: tuple[str, ...], file: Path, place: Path) -> Path:
    """Compiles a text in a folder and keeps the library."""
    draft, binary = place / "text.cpp", place / "text.so"
    draft.write_text(text, encoding="utf-8")
    start = (*toolchain.command, *flags)
    parts = [f"{place}/{number}.o" for number in range(2)] if text.startswith(TWO_PARTS) else []
    halves = [(*start, f"-DPART={n}", "-c", str(draft), "-o", part) for n, part in enumerate(parts)]
    try:
        message = _run(halves, place) or _run([(*start, *(parts or [str(draft)]), "-o", str(binary))], place)
    except subprocess.TimeoutExpired as error:
        raise CannotCompile(f"{toolchain} needed more than {PATIENCE:.0f} s for one text") from error
    if message:
        raise CannotCompile(
            f"{toolchain} refused the generated text; this is a fault of Paceline's, compute='autograd' goes on "
            "without."
            f"\n{message[:2000]}"
        )
    return keep(file, binary.read_bytes(), file.with_suffix(".cpp"), text)
