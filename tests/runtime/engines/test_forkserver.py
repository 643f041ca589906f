"""The forkserver starts with the modules that are needed, is replaced when others are, and ends with its parent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, sys
from multiprocessing import forkserver as server
from paceline.runtime.engines.workers import process as forkserver

def modules(pipe):
    pipe.send({name for name in ("torch", "paceline.planning.tuner.trials.worker") if name in sys.modules})

def loaded():
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe()
    process = context.Process(target=modules, args=(theirs,))
    process.start()
    found = mine.recv()
    process.join()
    return found

if __name__ == "__main__":
    forkserver.prepare(["paceline.planning.tuner.trials.worker"])
    first = server._forkserver._forkserver_pid
    assert loaded() == {"paceline.planning.tuner.trials.worker"}, loaded()
    descriptors = len(os.listdir("/proc/self/fd"))
    forkserver.prepare()
    assert loaded() == {"torch"}
    second = server._forkserver._forkserver_pid
    assert second != first and len(os.listdir("/proc/self/fd")) == descriptors
    forkserver.prepare(["paceline.planning.tuner.trials.worker"])
    assert server._forkserver._forkserver_pid == second
    print("done")
"""


EARLY = """
import multiprocessing, os, random, signal, sys, time
from multiprocessing import forkserver as server
from pathlib import Path
from paceline.runtime.engines.workers import process as forkserver
from paceline.runtime.engines.workers.process import become_worker

LIGHT = ["paceline.planning.tuner.trials.worker"]

def facts(pipe):
    pipe.send((os.getppid(), "torch" in sys.modules, forkserver.DDP[0] in sys.modules))

def work(pipe):
    become_worker(False)
    pipe.send(os.getpid())
    time.sleep(1000)

def begin(target):
    context = multiprocessing.get_context("forkserver")
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs,))
    with forkserver.interrupts_wait():
        process.start()
    theirs.close()
    return process, mine

def asked():
    process, pipe = begin(facts)
    found = pipe.recv()
    process.join()
    return found

def command():
    # What a command does, up to a moment at which it ends.
    os.setpgid(0, 0)
    try:
        forkserver.fork_anew()
        for _ in range(2):
            begin(work)[1].recv()
        time.sleep(1000)
    except BaseException:
        os._exit(130)

def members(group):
    found = []
    for each in os.listdir("/proc"):
        if each.isdigit():
            try:
                words = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if words[2] == str(group) and words[0] != "Z":
                found.append(int(each))
    return found

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it runs behind ignore it
    forkserver.fork_early(ddp=True)
    first = server._forkserver._forkserver_pid
    assert "torch" in sys.modules and forkserver.DDP[0] not in sys.modules
    forkserver.prepare()
    assert server._forkserver._forkserver_pid == first
    assert asked() == (first, True, True)
    chance = random.Random(0)
    for number in range(TRIES):
        pid = os.fork()
        if not pid:
            command()
        time.sleep(chance.uniform(0.0, 0.08))
        if number % 2:
            os.kill(pid, signal.SIGKILL)
        else:  # as a terminal does; a command that has not begun is not interrupted yet
            while os.getpgid(pid) != pid:
                time.sleep(0.001)
            os.killpg(pid, signal.SIGINT)
        os.waitpid(pid, 0)
        until = time.monotonic() + 60
        while left := members(pid):
            assert time.monotonic() < until, (number, left)
            time.sleep(0.002)
    os.environ["NEW"] = "1"  # as a job's file may do
    assert not forkserver._Start(0, forkserver.PRELOAD, {}).serves(forkserver.PRELOAD)
    assert not forkserver._Start(0, forkserver.PRELOAD, dict(os.environ)).serves(LIGHT)
    assert forkserver._Start(0, forkserver.PRELOAD, dict(os.environ)).serves(forkserver.PRELOAD)
    print("done")
"""


@pytest.mark.parametrize("tries", [6, pytest.param(50, marks=pytest.mark.soak)])
def test_one_that_is_forked_early_ends_with_the_command(tries: int, tmp_path: Path) -> None:
    """It has imported PyTorch once for all; SIGINT and SIGKILL at any moment leave no process behind."""
    run(EARLY.replace("TRIES", str(tries)), tmp_path)


def run(text: str, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(text)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_one_that_has_loaded_less_is_replaced(tmp_path: Path) -> None:
    """In an interpreter of its own, since the forkserver of these tests has everything loaded."""
    run(SCRIPT, tmp_path)
