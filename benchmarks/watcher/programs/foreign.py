"""Programs of Java and Node that hang; none had been run before the watcher was judged by them."""

from __future__ import annotations

from programs.parts import java, node


def three_monitors_in_a_circle() -> None:
    java(
        """
        public class Main {
          public static void main(String[] words) throws Exception {
            Object[] forks = {new Object(), new Object(), new Object()};
            for (int i = 0; i < 3; i++) {
              Object left = forks[i], right = forks[(i + 1) % 3];
              new Thread(() -> { synchronized (left) { nap(); synchronized (right) { } } }, "philosopher " + i).start();
            }
          }
          static void nap() { try { Thread.sleep(400); } catch (InterruptedException e) { } }
        }
        """
    )


def synchronized_methods_that_call_back() -> None:
    java(
        """
        public class Main {
          static class Account {
            synchronized void pay(Account to) throws Exception { Thread.sleep(200); to.take(); }
            synchronized void take() { }
          }
          public static void main(String[] words) throws Exception {
            Account a = new Account(), b = new Account();
            Thread other = new Thread(() -> { try { b.pay(a); } catch (Exception e) { } });
            other.start();
            a.pay(b);
          }
        }
        """
    )


def monitor_and_lock_in_two_orders() -> None:
    java(
        """
        import java.util.concurrent.locks.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            Object monitor = new Object();
            Lock lock = new ReentrantLock();
            Thread one = new Thread(() -> { synchronized (monitor) { nap(); lock.lock(); } });
            Thread two = new Thread(() -> { lock.lock(); nap(); synchronized (monitor) { } });
            one.start(); two.start(); two.join();
          }
          static void nap() { try { Thread.sleep(400); } catch (InterruptedException e) { } }
        }
        """
    )


def workers_of_a_server_in_two_orders() -> None:
    """The server goes on; two of its threads hold each other."""
    java(
        """
        import com.sun.net.httpserver.*;
        import java.net.InetSocketAddress;
        public class Main {
          public static void main(String[] words) throws Exception {
            Object users = new Object(), orders = new Object();
            HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            server.createContext("/", exchange -> exchange.sendResponseHeaders(204, -1));
            server.start();
            new Thread(() -> { synchronized (users) { nap(); synchronized (orders) { } } }).start();
            new Thread(() -> { synchronized (orders) { nap(); synchronized (users) { } } }).start();
          }
          static void nap() { try { Thread.sleep(400); } catch (InterruptedException e) { } }
        }
        """
    )


def tasks_that_wait_for_tasks_of_their_pool() -> None:
    java(
        """
        import java.util.*;
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            ExecutorService pool = Executors.newFixedThreadPool(2);
            Callable<Integer> leaf = () -> 1;
            Callable<Integer> branch = () -> { Thread.sleep(200); return pool.invokeAny(List.of(leaf)); };
            for (Future<Integer> each : pool.invokeAll(List.of(branch, branch))) System.out.println(each.get());
          }
        }
        """
    )


def read_lock_that_is_to_become_a_write_lock() -> None:
    java(
        """
        import java.util.concurrent.locks.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            ReadWriteLock cache = new ReentrantReadWriteLock();
            cache.readLock().lock();
            cache.writeLock().lock();
          }
        }
        """
    )


def classes_that_initialize_each_other() -> None:
    java(
        """
        public class Main {
          static class A { static { nap(); new B(); } }
          static class B { static { nap(); new A(); } }
          public static void main(String[] words) throws Exception {
            Thread one = new Thread(() -> new A()), two = new Thread(() -> new B());
            one.start(); two.start(); one.join();
          }
          static void nap() { try { Thread.sleep(400); } catch (InterruptedException e) { } }
        }
        """
    )


def consumer_that_puts_into_its_full_queue() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            BlockingQueue<Integer> jobs = new ArrayBlockingQueue<>(1);
            jobs.put(1);
            Thread consumer = new Thread(() -> {
              try { while (true) { int job = jobs.take(); jobs.put(job); jobs.put(job + 1); } } catch (Exception e) { }
            });
            consumer.start();
            consumer.join();
          }
        }
        """
    )


def child_of_java_whose_output_is_not_read() -> None:
    java(
        """
        public class Main {
          public static void main(String[] words) throws Exception {
            System.exit(new ProcessBuilder("seq", "1000000").start().waitFor());
          }
        }
        """
    )


def latch_of_a_worker_that_failed() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            CountDownLatch done = new CountDownLatch(2);
            new Thread(done::countDown).start();
            new Thread(() -> { if (words.length == 0) throw new IllegalStateException(); done.countDown(); }).start();
            done.await();
          }
        }
        """
    )


def notified_before_it_waits() -> None:
    java(
        """
        public class Main {
          public static void main(String[] words) throws Exception {
            Object bell = new Object();
            Thread sleeper = new Thread(() -> {
              try { Thread.sleep(500); synchronized (bell) { bell.wait(); } } catch (InterruptedException e) { }
            });
            sleeper.start();
            synchronized (bell) { bell.notify(); }
            sleeper.join();
          }
        }
        """
    )


def workers_of_node_in_two_orders() -> None:
    node(
        """
        const {Worker, isMainThread, workerData} = require('worker_threads');
        const take = (locks, at) => { while (Atomics.compareExchange(locks, at, 0, 1)) Atomics.wait(locks, at, 1); };
        if (isMainThread) {
          const locks = new Int32Array(new SharedArrayBuffer(8));
          for (const order of [[0, 1], [1, 0]]) new Worker(__filename, {workerData: {locks, order}});
        } else {
          const {locks, order} = workerData;
          take(locks, order[0]);
          Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 500);
          take(locks, order[1]);
        }
        """
    )


def main_blocks_for_a_worker_that_waits_for_a_message() -> None:
    node(
        """
        const {Worker, isMainThread, parentPort, workerData} = require('worker_threads');
        if (isMainThread) {
          const flag = new Int32Array(new SharedArrayBuffer(4));
          const worker = new Worker(__filename, {workerData: flag});
          Atomics.wait(flag, 0, 0);
          worker.postMessage('go');
        } else parentPort.on('message', () => { Atomics.store(workerData, 0, 1); Atomics.notify(workerData, 0); });
        """
    )


def child_asks_the_server_that_waits_for_it() -> None:
    """A server of Node runs a command to its end, and the command asks the server."""
    node(
        """
        const {execFileSync} = require('child_process');
        const server = require('net').createServer(there => there.end('data'));
        server.listen(0, '127.0.0.1', () => {
          const ask = `exec 3<>/dev/tcp/127.0.0.1/${server.address().port}; cat <&3`;
          execFileSync('bash', ['-c', ask]);
        });
        """
    )


PROGRAMS = {
    each.__name__: each
    for each in (
        three_monitors_in_a_circle, synchronized_methods_that_call_back, monitor_and_lock_in_two_orders,
        workers_of_a_server_in_two_orders, tasks_that_wait_for_tasks_of_their_pool,
        read_lock_that_is_to_become_a_write_lock, classes_that_initialize_each_other,
        consumer_that_puts_into_its_full_queue, child_of_java_whose_output_is_not_read, latch_of_a_worker_that_failed,
        notified_before_it_waits, workers_of_node_in_two_orders, main_blocks_for_a_worker_that_waits_for_a_message,
        child_asks_the_server_that_waits_for_it,
    )
}  # fmt: skip
