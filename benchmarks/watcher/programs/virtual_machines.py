"""Programs of Java and Node that wait as servers and tools do, and do not hang; run only to judge."""

from __future__ import annotations

from programs.parts import background, free_port, java, node, run, script


def web_server_of_java() -> None:
    java(
        """
        import com.sun.net.httpserver.*;
        import java.net.InetSocketAddress;
        public class Main {
          public static void main(String[] words) throws Exception {
            HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
            server.createContext("/", exchange -> exchange.sendResponseHeaders(204, -1));
            server.start();
          }
        }
        """
    )


def monitor_held_by_a_sleeper() -> None:
    """One thread holds a monitor while it sleeps, and three queue for it."""
    java(
        """
        public class Main {
          public static void main(String[] words) throws Exception {
            Object books = new Object();
            Runnable audit = () -> {
              while (true) synchronized (books) { nap(); }
            };
            for (int i = 0; i < 4; i++) new Thread(audit).start();
          }
          static void nap() { try { Thread.sleep(40000); } catch (InterruptedException e) { } }
        }
        """
    )


def monitor_held_over_a_silent_socket() -> None:
    """One thread holds a monitor while it reads from a server that does not answer yet; the others wait for both."""
    port = free_port()
    server = script(
        f"""
        import socket, time
        with socket.create_server(("127.0.0.1", {port})) as server:
            there, _ = server.accept()
            while True:
                time.sleep(55)
                there.sendall(b"x")
        """
    )
    source = """
    import java.io.InputStream;
    import java.net.Socket;
    public class Main {
      public static void main(String[] words) throws Exception {
        Object session = new Object();
        InputStream in = new Socket("127.0.0.1", PORT).getInputStream();
        Thread reader = new Thread(() -> {
          try { while (true) synchronized (session) { in.read(); } } catch (Exception e) { }
        });
        reader.start();
        Thread.sleep(500);
        synchronized (session) { System.out.println("mine"); }
        reader.join();
      }
    }
    """
    with background("python3", server, wait=1):
        java(source.replace("PORT", str(port)))


def consumers_of_a_blocking_queue() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            BlockingQueue<Integer> orders = new LinkedBlockingQueue<>();
            for (int i = 0; i < 3; i++)
              new Thread(() -> { try { while (true) orders.take(); } catch (InterruptedException e) { } }).start();
            while (true) { Thread.sleep(50000); orders.put(1); }
          }
        }
        """
    )


def future_of_a_slow_call() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            ExecutorService pool = Executors.newFixedThreadPool(2);
            while (true) pool.submit(() -> { Thread.sleep(45000); return 1; }).get();
          }
        }
        """
    )


def latch_opened_by_a_child_process() -> None:
    java(
        """
        import java.util.concurrent.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            while (true) {
              CountDownLatch done = new CountDownLatch(1);
              Process child = new ProcessBuilder("sleep", "50").start();
              child.onExit().thenRun(done::countDown);
              done.await();
            }
          }
        }
        """
    )


def console_of_java() -> None:
    """A program that reads commands from a pipe into which a slow shell writes."""
    file = script(
        """
        import java.util.Scanner;
        public class Main {
          public static void main(String[] words) {
            Scanner in = new Scanner(System.in);
            while (in.hasNextLine()) System.out.println(in.nextLine());
          }
        }
        """,
        "Main.java",
    )
    run("sh", "-c", f"(while true; do sleep 45; echo help; done) | java {file}")


def lock_with_fairness_and_a_slow_owner() -> None:
    java(
        """
        import java.util.concurrent.locks.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            ReentrantLock turn = new ReentrantLock(true);
            for (int i = 0; i < 3; i++)
              new Thread(() -> {
                while (true) {
                  turn.lock();
                  try { Thread.sleep(35000); } catch (InterruptedException e) { return; } finally { turn.unlock(); }
                }
              }).start();
          }
        }
        """
    )


def wait_and_notify_once_a_minute() -> None:
    java(
        """
        public class Main {
          public static void main(String[] words) throws Exception {
            Object bell = new Object();
            Thread sleeper = new Thread(() -> {
              synchronized (bell) { try { while (true) bell.wait(); } catch (InterruptedException e) { } }
            });
            sleeper.start();
            while (true) { Thread.sleep(60000); synchronized (bell) { bell.notifyAll(); } }
          }
        }
        """
    )


def collects_garbage() -> None:
    """A heap of many small objects that is collected often."""
    java(
        """
        import java.util.*;
        public class Main {
          public static void main(String[] words) throws Exception {
            List<byte[]> kept = new ArrayList<>();
            while (true) {
              for (int i = 0; i < 20000; i++) kept.add(new byte[1000]);
              if (kept.size() > 100000) kept.clear();
              System.gc();
              Thread.sleep(9000);
            }
          }
        }
        """
    )


def child_of_node_that_idles() -> None:
    """A parent and a child with a channel between them; a job comes once a minute."""
    node(
        """
        const {fork} = require('child_process');
        if (process.argv[2]) process.on('message', job => process.send(job + 1));
        else {
          const child = fork(__filename, ['child']);
          child.on('message', () => {});
          setInterval(() => child.send(1), 60000);
        }
        """
    )


def workers_of_node_with_a_timer() -> None:
    node(
        """
        const {Worker, isMainThread, parentPort} = require('worker_threads');
        if (isMainThread) {
          const workers = [1, 2].map(() => new Worker(__filename));
          setInterval(() => workers.forEach(each => each.postMessage(1)), 45000);
        } else parentPort.on('message', () => {});
        """
    )


def worker_of_node_that_computes_for_another() -> None:
    """The main thread blocks until a worker notifies it, which takes half a minute."""
    node(
        """
        const {Worker, isMainThread, workerData} = require('worker_threads');
        if (isMainThread) {
          const flag = new Int32Array(new SharedArrayBuffer(4));
          new Worker(__filename, {workerData: flag});
          while (true) { Atomics.wait(flag, 0, 0); Atomics.store(flag, 0, 0); }
        } else setInterval(() => { Atomics.store(workerData, 0, 1); Atomics.notify(workerData, 0); }, 35000);
        """
    )


def prompt_of_node() -> None:
    file = script("require('repl').start('> ')", "main.js")
    run("script", "-qc", f"node {file}", "/dev/null")


def cluster_of_node() -> None:
    node(
        """
        const cluster = require('cluster');
        if (cluster.isPrimary) { cluster.fork(); cluster.fork(); }
        else require('http').createServer((q, a) => a.end('ok')).listen(0, '127.0.0.1');
        """
    )


PROGRAMS = {
    each.__name__: each
    for each in (
        web_server_of_java, monitor_held_by_a_sleeper, monitor_held_over_a_silent_socket, consumers_of_a_blocking_queue,
        future_of_a_slow_call, latch_opened_by_a_child_process, console_of_java, lock_with_fairness_and_a_slow_owner,
        wait_and_notify_once_a_minute, collects_garbage, child_of_node_that_idles, workers_of_node_with_a_timer,
        worker_of_node_that_computes_for_another, prompt_of_node, cluster_of_node,
    )
}  # fmt: skip
