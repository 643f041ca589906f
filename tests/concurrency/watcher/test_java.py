"""Threads of a Java virtual machine: the dump that it gives is parsed, and a real one is read from outside."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.concurrency.watcher.graph import find_knot
from paceline.concurrency.watcher.processes import proc
from paceline.concurrency.watcher.processes.java import ask, is_java, parse, read_java, with_java_stacks
from paceline.concurrency.watcher.samples import MAIN_OF_JAVA, Frame, Process, Snapshot, Thread, ThreadWait

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
DUMP = """
"main" #1 prio=5 os_prio=0 cpu=9.51ms elapsed=3.00s tid=0x00007f nid=0xb in Object.wait()  [0x00007f]
   java.lang.Thread.State: WAITING (on object monitor)
\tat java.lang.Object.wait(java.base@17.0.15/Native Method)
\tat java.lang.Thread.join(java.base@17.0.15/Thread.java:1313)
\tat Main.main(Main.java:7)

   Locked ownable synchronizers:
\t- None

"one" #13 prio=5 os_prio=0 cpu=0.7ms elapsed=2.00s tid=0x00007f nid=12 waiting on condition  [0x00007f]
   java.lang.Thread.State: WAITING (parking)
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.15/Native Method)
\t- parking to wait for  <0x000000062c0> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)
\tat java.util.concurrent.locks.ReentrantLock.lock(java.base@17.0.15/ReentrantLock.java:322)
\tat Main.lambda$main$0(Main.java:5)

   Locked ownable synchronizers:
\t- <0x000000062f0> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)

"two, it's \\"quoted\\"" #14 prio=5 os_prio=0 tid=0x00007f nid=0xd waiting on condition  [0x00007f]
\tat java.util.concurrent.locks.ReentrantLock.lock(java.base@17.0.15/ReentrantLock.java:322)
\t- parking to wait for  <0x000000062f0> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)

   Locked ownable synchronizers:
\t- <0x000000062c0> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)

"VM Thread" os_prio=0 cpu=1.00ms elapsed=3.00s tid=0x00007f nid=0xe runnable
"""
MONITORS = """
public class Main {
  public static void main(String[] words) throws Exception {
    Object a = new Object(), b = new Object();
    Thread one = new Thread(() -> { synchronized (a) { nap(); synchronized (b) { } } });
    Thread two = new Thread(() -> { synchronized (b) { nap(); synchronized (a) { } } });
    one.start(); two.start(); one.join();
  }
  static void nap() { try { Thread.sleep(100); } catch (InterruptedException e) { } }
}
"""


def lock() -> ThreadWait:
    return ThreadWait("lock", (10,), "a lock of its own process")


def test_a_dump_says_where_threads_are_and_who_holds_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = parse(DUMP)[1:3]
    assert (one.tid, two.tid, one.parks) == (12, 13, "0x000000062c0")
    assert one.stack[-1] == Frame("Main.java", 5, "Main.lambda$main$0")
    assert one.stack[0].file.startswith("<")
    monkeypatch.setattr("paceline.concurrency.watcher.processes.java.is_java", lambda pid: True)
    monkeypatch.setattr("paceline.concurrency.watcher.processes.java.ask", lambda pid: DUMP)
    threads = tuple(Thread(tid, lock()) for tid in (11, 12, 13))
    told = with_java_stacks(Snapshot(0.0, (Process(10, 1, "java", threads),)), [10])
    assert [thread.wait.owners for _, thread in told.threads()] == [(), (13,), (12,)]
    found = find_knot(told, lambda pid, tid: True)
    assert found is not None
    assert sorted(found.core) == [12, 13]


def test_what_a_signal_starts_may_notify_the_main_thread_of_java_but_ends_no_thread() -> None:
    waits = Process(10, 1, "java", (Thread(11, lock()._replace(on=MAIN_OF_JAVA)),), handles_signals=True)

    def knot(function: str) -> bool:
        process = replace(waits, stacks=((Frame("<Thread.java>", 1, function),),), tids=(11,))
        return find_knot(Snapshot(0.0, (process,)), lambda pid, tid: True) is not None

    assert find_knot(Snapshot(0.0, (waits,)), lambda pid, tid: True) is None
    assert knot("java.lang.Thread.join")
    assert not knot("java.util.concurrent.CountDownLatch.await")


@pytest.fixture
def java(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    (tmp_path / "Main.java").write_text(MONITORS)
    with subprocess.Popen(["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", str(tmp_path / "Main.java")]) as process:
        yield process
        process.kill()


def until(found: Callable[[], bool]) -> None:
    while not found():
        time.sleep(0.05)


@needs_java
def test_threads_that_are_in_each_others_monitors_are_read_from_memory(java: subprocess.Popen[bytes]) -> None:
    def inside() -> dict[int, int]:
        found = read_java(java.pid)
        return dict(found.inside) if found else {}

    until(lambda: len(inside()) == 2)
    one, two = inside()
    until(lambda: inside() == {one: two, two: one})
    found = read_java(java.pid)
    assert found is not None
    assert found.joined == {found.main: one}
    until(lambda: {t.wait.kind for _, t in proc.snapshot([java.pid]).threads() if t.tid in (one, two)} == {"monitor"})
    snapshot = proc.snapshot([java.pid])
    assert not any(each.wait.kind == "clock" for _, each in snapshot.threads())
    stacks = {each.tid: each.stack for each in parse(ask(java.pid))}
    assert [frame.file for frame in stacks[one]] == ["Main.java", "<Thread.java>"]


def test_other_programs_are_no_virtual_machines() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        assert not is_java(process.pid)
        assert read_java(process.pid) is None
        process.kill()
