"""Pools and named pipes that come to nothing at their start; none had been run before the watcher was judged."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

from programs.parts import python


def _ends() -> None:
    os._exit(3)


def _crashes() -> None:
    ctypes.string_at(0)


def _is_refused() -> None:
    raise SystemExit("no licence")


def _is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pool_whose_workers_exit() -> None:
    with multiprocessing.Pool(3, initializer=_ends) as pool:
        pool.map(abs, range(10))


def pool_whose_workers_crash() -> None:
    with multiprocessing.get_context("fork").Pool(1, initializer=_crashes) as pool:
        pool.apply_async(abs, (1,)).get()


def unordered_results_of_refused_workers() -> None:
    pool = multiprocessing.Pool(2, initializer=_is_refused)
    for each in pool.imap_unordered(abs, range(10)):
        print(each)


def pool_of_spawned_workers_that_are_killed() -> None:
    with multiprocessing.get_context("spawn").Pool(2, initializer=_is_killed) as pool:
        pool.starmap(divmod, [(3, 2), (5, 2)])


def pool_that_is_joined_before_any_worker_lives() -> None:
    pool = multiprocessing.Pool(2, initializer=_is_refused)
    results = [pool.apply_async(abs, (number,)) for number in range(5)]
    pool.close()
    pool.join()
    print(len(results))


def workers_that_import_what_is_missing() -> None:
    """The script finds a module beside it, its workers look for it elsewhere."""
    python(
        """
        import multiprocessing, os, sys, types
        if __name__ == "__mp_main__":
            import settings_of_this_machine
        def work(number):
            return number
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                pool.map(work, range(4))
        """
    )


def pool_of_torch_without_its_device() -> None:
    python(
        """
        import torch, torch.multiprocessing
        def start():
            torch.cuda.set_device(0)
        def work(number):
            return number
        if __name__ == "__main__":
            with torch.multiprocessing.Pool(1, initializer=start) as pool:
                pool.map(work, range(4))
        """
    )


def _fifo(name: str) -> Path:
    fifo = Path(tempfile.mkdtemp()) / name
    os.mkfifo(fifo)
    return fifo


def three_read_what_none_writes() -> None:
    fifo = _fifo("jobs")
    readers = [multiprocessing.Process(target=fifo.read_text) for _ in range(3)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


def named_pipe_opened_for_writing_by_both() -> None:
    fifo = _fifo("results")
    child = multiprocessing.Process(target=fifo.write_text, args=("child",))
    child.start()
    fifo.write_text("parent")


def threads_that_read_their_own_named_pipe() -> None:
    fifo = _fifo("words")
    reader = threading.Thread(target=fifo.read_text)
    reader.start()
    reader.join()
    fifo.write_text("word")


def shell_that_reads_what_a_failed_command_was_to_write() -> None:
    script = 'd=$(mktemp -d); mkfifo "$d/out"; (false && echo done > "$d/out") & cat "$d/out"; rm -r "$d"'
    subprocess.run(["bash", "-c", script])


def shells_that_open_two_named_pipes_crosswise() -> None:
    script = """d=$(mktemp -d); mkfifo "$d/a" "$d/b"
    (exec 3< "$d/a" 4> "$d/b"; cat <&3 >&4) &
    exec 3< "$d/b" 4> "$d/a"; echo hello >&4; cat <&3"""
    subprocess.run(["bash", "-c", script])


PROGRAMS = {
    each.__name__: each
    for each in (
        pool_whose_workers_exit, pool_whose_workers_crash, unordered_results_of_refused_workers,
        pool_of_spawned_workers_that_are_killed, pool_that_is_joined_before_any_worker_lives,
        workers_that_import_what_is_missing, pool_of_torch_without_its_device, three_read_what_none_writes,
        named_pipe_opened_for_writing_by_both, threads_that_read_their_own_named_pipe,
        shell_that_reads_what_a_failed_command_was_to_write, shells_that_open_two_named_pipes_crosswise,
    )
}  # fmt: skip
