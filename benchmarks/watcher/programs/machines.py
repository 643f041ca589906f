"""Programs of Java, Node and pools that hang; the watcher learned of these virtual machines with them."""

from __future__ import annotations

from programs.parts import java, node, python


def locks_of_java_in_two_orders() -> None:
    java(
        """
        import java.util.concurrent.locks.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            ReentrantLock a = new ReentrantLock(), b = new ReentrantLock();
            Thread one = new Thread(() -> { a.lock(); nap(); b.lock(); });
            Thread two = new Thread(() -> { b.lock(); nap(); a.lock(); });
            one.start(); two.start(); one.join();
          }
          static void nap() { try { Thread.sleep(300); } catch (Exception e) {} }
        }
        """
    )


def pool_of_java_with_one_thread() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            ExecutorService pool = Executors.newFixedThreadPool(1);
            pool.submit(() -> pool.submit(() -> 1).get()).get();
          }
        }
        """
    )


def parent_and_child_of_node_wait_for_each_other() -> None:
    node(
        """
        const {fork} = require('child_process');
        if (process.argv[2]) process.on('message', word => process.send(word));
        else fork(__filename, ['child']).on('message', word => console.log(word));
        """
    )


def pool_of_a_script_without_a_guard() -> None:
    """Every worker runs the script again, and fails because it starts processes before it is ready."""
    python(
        """
        import multiprocessing
        multiprocessing.set_start_method("spawn", force=True)
        pool = multiprocessing.Pool(2)
        print(list(pool.imap(abs, range(4))))
        """
    )


PROGRAMS = {
    each.__name__: each
    for each in (
        locks_of_java_in_two_orders, pool_of_java_with_one_thread, parent_and_child_of_node_wait_for_each_other,
        pool_of_a_script_without_a_guard,
    )
}  # fmt: skip
