"""Programs of several parts that wait and do not hang; none had been run before the watcher was judged by them."""

from __future__ import annotations

import multiprocessing
import os
import pty
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

from programs.parts import free_port


def batch_that_waits_for_its_window() -> None:
    ready = threading.Condition()

    def until_tonight() -> None:
        with ready:
            ready.wait(timeout=120)

    workers = [threading.Thread(target=until_tonight) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def idle_server_of_node() -> None:
    script = "require('http').createServer((q, a) => a.end('ok')).listen(0, '127.0.0.1')"
    subprocess.run(["node", "-e", script], check=True)


def scheduled_pool_of_java() -> None:
    source = """
    import java.util.concurrent.*;
    public class Plan {
      public static void main(String[] words) throws Exception {
        ScheduledExecutorService pool = Executors.newScheduledThreadPool(2);
        pool.scheduleAtFixedRate(() -> System.out.println("tick"), 20, 20, TimeUnit.SECONDS);
        pool.awaitTermination(1, TimeUnit.HOURS);
      }
    }
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "Plan.java"
        file.write_text(source)
        subprocess.run(["java", str(file)], check=True)


def make_with_slow_recipes() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rules = "all: a b c\na:\n\tsleep 25 && touch a\nb:\n\tsleep 40 && touch b\nc: a b\n\tsleep 60\n"
        (Path(folder) / "Makefile").write_text(rules)
        subprocess.run(["make", "-j2"], cwd=folder, check=True)


def suite_of_slow_tests() -> None:
    with tempfile.TemporaryDirectory() as folder:
        waits = "import threading, time\ndef test_waits():\n    threading.Event().wait(35)\n"
        test = waits + "def test_sleeps():\n    time.sleep(60)\n"
        (Path(folder) / "test_slow.py").write_text(test)
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder], check=True)


def servers_that_call_each_other_in_time() -> None:
    """Two servers with one thread each; the second one's method takes long, and asks no one."""
    ports = [free_port() for _ in range(2)]

    def slow() -> str:
        time.sleep(45)
        return "done"

    def serve(own: int, other: int) -> None:
        server = SimpleXMLRPCServer(("127.0.0.1", own), logRequests=False)
        server.register_function(slow, "slow")
        server.register_function(lambda: ServerProxy(f"http://127.0.0.1:{other}").slow(), "status")
        server.serve_forever()

    for own, other in (ports, ports[::-1]):
        multiprocessing.Process(target=serve, args=(own, other), daemon=True).start()
    time.sleep(1)
    ServerProxy(f"http://127.0.0.1:{ports[0]}").status()


def idle_shell_in_a_terminal() -> None:
    """As a terminal's window does: the shell waits for input, and the window for the shell and for keys."""
    keys = socket.create_server(("127.0.0.1", 0))
    child, master = pty.fork()
    if child == 0:
        os.execvp("bash", ["bash", "--norc", "-i"])
    while True:
        ready, _, _ = select.select([master, keys], [], [])
        if master in ready:
            os.read(master, 1000)


def supervisor_that_starts_its_child_again() -> None:
    while True:
        child = subprocess.Popen(["sleep", "8"])
        child.wait()


PROGRAMS = {
    each.__name__: each
    for each in (
        batch_that_waits_for_its_window, idle_server_of_node, scheduled_pool_of_java, make_with_slow_recipes,
        suite_of_slow_tests, servers_that_call_each_other_in_time, idle_shell_in_a_terminal,
        supervisor_that_starts_its_child_again,
    )
}  # fmt: skip
