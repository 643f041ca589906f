"""Programs that hang, most of them with waits that end by themselves and are begun again."""

from __future__ import annotations

import importlib
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path


def output_read_after_the_end() -> None:
    program = [sys.executable, "-c", "print('x' * 1_000_000)"]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as child:
        while child.poll() is None:
            time.sleep(0.5)
        assert child.stdout
        child.stdout.read()


def child_logs_after_a_fork() -> None:
    """A thread was writing to the log when the process was forked."""
    log = threading.Lock()

    def write() -> None:
        with log:
            time.sleep(0.5)

    threading.Thread(target=write).start()
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        with log:
            os._exit(0)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.2)


def condition_waited_for_in_steps() -> None:
    """As clients of remote procedures wait for a reply: the thread that receives replies has failed."""
    arrived = threading.Condition()
    replies: list[bytes] = []

    def receive() -> None:
        raise ConnectionResetError

    threading.Thread(target=receive).start()
    with arrived:
        while not replies:
            arrived.wait(timeout=0.2)


def named_pipes_in_two_orders() -> None:
    folder = Path(tempfile.mkdtemp())
    there, back = folder / "there", folder / "back"
    os.mkfifo(there)
    os.mkfifo(back)
    if os.fork() == 0:
        with open(back, "wb") as out, open(there, "rb") as answers:
            out.write(answers.read())
        os._exit(0)
    with open(there, "wb") as out, open(back, "rb") as answers:
        out.write(answers.read())


def thread_imports_what_is_imported() -> None:
    """A module starts threads when it is imported, and these import it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "settings_of_it.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def read(name):\n"
        "    from settings_of_it import VALUES\n"
        "    return VALUES[name]\n"
        "with ThreadPoolExecutor(2) as pool:\n"
        "    RESULTS = list(pool.map(read, 'ab'))\n"
        "VALUES = {'a': 1, 'b': 2}\n"
    )
    sys.path.insert(0, str(folder))
    importlib.import_module("settings_of_it")


def select_loop_without_a_writer() -> None:
    read, _write = os.pipe()
    while True:
        ready, _, _ = select.select([read], [], [], 0.5)
        if ready:
            break


PROGRAMS = {
    each.__name__: each
    for each in (
        output_read_after_the_end, child_logs_after_a_fork, condition_waited_for_in_steps,
        named_pipes_in_two_orders, thread_imports_what_is_imported, select_loop_without_a_writer,
    )
}  # fmt: skip
