"""Further programs of Java, Node and pools that hang, written when the watcher was finished; run only to judge."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

from programs.parts import java, node


def notified_only_by_who_needs_the_outer_monitor() -> None:
    java(
        """
        public class Main {
          public static void main(String[] words) throws Exception {
            Object outer = new Object(), inner = new Object();
            Thread waits = new Thread(() -> {
              synchronized (outer) { synchronized (inner) { try { inner.wait(); } catch (InterruptedException e) { } } }
            });
            waits.start();
            Thread.sleep(300);
            synchronized (outer) { synchronized (inner) { inner.notify(); } }
          }
        }
        """
    )


def stamped_lock_taken_twice() -> None:
    java(
        """
        import java.util.concurrent.locks.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            StampedLock lock = new StampedLock();
            Thread writer = new Thread(() -> { lock.writeLock(); lock.readLock(); });
            writer.start();
            writer.join();
          }
        }
        """
    )


def semaphores_in_two_orders() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          static void both(Semaphore first, Semaphore second) {
            try { first.acquire(); Thread.sleep(300); second.acquire(); } catch (InterruptedException e) { }
          }
          public static void main(String[] words) throws Exception {
            Semaphore pens = new Semaphore(1), sheets = new Semaphore(1);
            ExecutorService pool = Executors.newFixedThreadPool(2);
            Future<?> one = pool.submit(() -> both(pens, sheets)), two = pool.submit(() -> both(sheets, pens));
            one.get();
            two.get();
          }
        }
        """
    )


def stage_that_joins_its_own_result() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          static CompletableFuture<Integer> result;
          public static void main(String[] words) throws Exception {
            ExecutorService pool = Executors.newSingleThreadExecutor();
            CountDownLatch ready = new CountDownLatch(1);
            result = CompletableFuture.supplyAsync(() -> {
              try { ready.await(); } catch (InterruptedException e) { }
              return result.join();
            }, pool);
            ready.countDown();
            System.out.println(result.get());
          }
        }
        """
    )


def parent_waits_for_ready_and_child_for_go() -> None:
    node(
        """
        const {fork} = require('child_process');
        const once = (who, word) => new Promise(done => who.on('message', each => { if (each === word) done(); }));
        if (process.argv[2]) once(process, 'go').then(() => process.send('ready'));
        else {
          const child = fork(__filename, ['child']);
          once(child, 'ready').then(() => child.send('go'));
        }
        """
    )


def worker_blocks_for_what_its_exit_would_bring() -> None:
    node(
        """
        const {Worker, isMainThread, workerData} = require('worker_threads');
        if (isMainThread) {
          const flag = new Int32Array(new SharedArrayBuffer(4));
          const worker = new Worker(__filename, {workerData: flag});
          worker.on('exit', () => { Atomics.store(flag, 0, 1); Atomics.notify(flag, 0); });
        } else Atomics.wait(workerData, 0, 0);
        """
    )


def _reads(file: Path) -> None:
    file.read_text()


def pool_whose_later_workers_fail() -> None:
    """Each worker has one task; the first two start well, then a file is gone that the initializer reads."""
    settings = Path(tempfile.mkdtemp()) / "settings"
    settings.write_text("x")
    with multiprocessing.Pool(2, initializer=_reads, initargs=(settings,), maxtasksperchild=1) as pool:
        pool.map(abs, range(2), chunksize=1)
        settings.unlink()
        pool.map(abs, range(10), chunksize=1)


def pool_of_ending_workers_beside_a_heartbeat() -> None:
    def beat() -> None:
        while True:
            time.sleep(1)
            Path(tempfile.gettempdir(), "alive").touch()

    threading.Thread(target=beat, daemon=True).start()
    with multiprocessing.Pool(2, initializer=os._exit, initargs=(1,)) as pool:
        pool.map(abs, range(10))


PROGRAMS = {
    each.__name__: each
    for each in (
        notified_only_by_who_needs_the_outer_monitor, stamped_lock_taken_twice, semaphores_in_two_orders,
        stage_that_joins_its_own_result, parent_waits_for_ready_and_child_for_go,
        worker_blocks_for_what_its_exit_would_bring, pool_whose_later_workers_fail,
        pool_of_ending_workers_beside_a_heartbeat,
    )
}  # fmt: skip
