"""Real programs of a day's work, which do not hang: each works for a while, waits for a while, and begins again."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from programs.parts import BIN, ROOT, background, free_port, repeat, script


def compiles() -> None:
    """A C++ project of eight files, built by make with two jobs."""
    folder = Path(tempfile.mkdtemp())
    for number in range(8):
        text = "#include <map>\n#include <regex>\n#include <string>\n"
        (folder / f"part{number}.cc").write_text(
            f'{text}int part{number}(std::string s) {{ return std::regex_match(s, std::regex("a+b")); }}\n'
        )
    (folder / "Makefile").write_text(
        f"all: {' '.join(f'part{n}.o' for n in range(8))}\n\tar rc lib.a $^\nclean:\n\trm -f *.o lib.a\n"
    )
    repeat(["make", "-C", folder, "-j2"], ["make", "-C", folder, "clean"], pause=20)


def runs_a_test_suite() -> None:
    tests = ["concurrency/watcher/test_graph.py", "algorithms/test_collectives.py", "algorithms/test_server.py"]
    repeat(*([BIN / "python", "-m", "pytest", "-q", "-x", ROOT / "tests" / each] for each in tests), pause=25)


def web_service_with_clients() -> None:
    """An application of FastAPI under uvicorn, of which one page is slow."""
    application = script(
        """
        import asyncio, time
        from fastapi import FastAPI
        app = FastAPI()

        @app.get("/")
        async def fast(): return {"ok": True}

        @app.get("/report")
        def slow():
            time.sleep(17)
            return {"rows": 3}

        @app.get("/events")
        async def events():
            await asyncio.sleep(41)
            return []
        """
    )
    port, folder = free_port(), application.parent
    with background(BIN / "python", "-m", "uvicorn", "script:app", "--port", port, "--app-dir", folder):
        pages = [["curl", "-s", f"http://127.0.0.1:{port}/{page}"] for page in ("", "report", "events")]
        repeat(*pages, pause=11)


def notebook_kernel() -> None:
    """A kernel of Jupyter whose user thinks between the cells."""
    file = script(
        """
        import time
        from jupyter_client.manager import start_new_kernel
        manager, client = start_new_kernel()
        cells = ["import numpy as np", "x = np.random.rand(800, 800)", "import time; time.sleep(19)", "(x @ x).sum()",
                 "import threading; t = threading.Thread(target=time.sleep, args=(12,)); t.start(); t.join()"]
        while True:
            for cell in cells:
                client.execute_interactive(cell, output_hook=lambda _: None)
                time.sleep(33)
        """
    )
    repeat([BIN / "python", file], pause=5)


def trains_with_paceline() -> None:
    runs = tempfile.mkdtemp()
    train = [BIN / "paceline", "train", "digits", "--plan", "ring", "--workers", "2", "--runs", runs]
    repeat(train, pause=25)


def trains_with_torchrun() -> None:
    """Two ranks, of which one evaluates and saves after every epoch while the other one waits."""
    file = script(
        """
        import os, tempfile, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            for _ in range(50):
                optimizer.zero_grad()
                model(torch.randn(32, 64)).square().mean().backward()
                optimizer.step()
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), os.path.join(tempfile.gettempdir(), "model.pt"))
                time.sleep(23)
            dist.barrier()
        """
    )
    repeat([BIN / "torchrun", "--standalone", "--nproc-per-node", "2", file], pause=5)


def ray_with_an_idle_actor() -> None:
    file = script(
        """
        import time, ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

        @ray.remote
        class Counter:
            def add(self, seconds):
                time.sleep(seconds)
                return seconds

        counter = Counter.remote()
        while True:
            ray.get(counter.add.remote(14))
            time.sleep(37)
        """
    )
    repeat([BIN / "python", file], pause=5)


def spark_session() -> None:
    file = script(
        """
        import time
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        while True:
            spark.range(1_000_000).selectExpr("sum(id % 7)").collect()
            time.sleep(44)
        """
    )
    repeat([BIN / "python", file], pause=5)


def documentation_server() -> None:
    folder, port = Path(tempfile.mkdtemp()), free_port()
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text("# Notes\n")
    (folder / "mkdocs.yml").write_text("site_name: Notes\n")
    with background(BIN / "mkdocs", "serve", "-f", folder / "mkdocs.yml", "-a", f"127.0.0.1:{port}"):
        page = folder / "docs" / "index.md"
        repeat(["curl", "-s", f"http://127.0.0.1:{port}/"], ["sh", "-c", f"echo more >> {page}"], pause=38)


def slow_downloads() -> None:
    """Files of 2 MB at 20 and 50 kB/s, from a server of Python's library."""
    folder, port = Path(tempfile.mkdtemp()), free_port()
    (folder / "weights.bin").write_bytes(os.urandom(2_000_000))
    with background(BIN / "python", "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", folder):
        url = f"http://127.0.0.1:{port}/weights.bin"
        slow = [["curl", "-s", "-o", "/dev/null", "--limit-rate", rate, url] for rate in ("20k", "50k")]
        repeat(*slow, pause=9)


def browser_with_a_page() -> None:
    folder, port = Path(tempfile.mkdtemp()), free_port()
    (folder / "index.html").write_text(
        "<title>Clock</title><script>setInterval(() => document.title = Date(), 9000)</script>"
    )
    with background(BIN / "python", "-m", "http.server", port, "--bind", "127.0.0.1", "--directory", folder):
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}/p",
        ]
        repeat(["chromium", *flags, f"http://127.0.0.1:{port}/"], pause=5)


def study_in_a_database() -> None:
    """Two processes of Optuna that share a study in SQLite."""
    database = Path(tempfile.mkdtemp()) / "study.db"
    file = script(
        f"""
        import time, optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(storage="sqlite:///{database}", study_name="study", load_if_exists=True)
        def objective(trial):
            time.sleep(13)
            return trial.suggest_float("x", -1, 1) ** 2
        study.optimize(objective, n_trials=1000)
        """
    )
    with background(BIN / "python", file, wait=8):
        repeat([BIN / "python", file], pause=5)


def repositories() -> None:
    folder = Path(tempfile.mkdtemp())
    clone = ["git", "clone", "-q", "--no-local", "--depth", "3", f"file://{ROOT}", folder / "copy"]
    repeat(clone, ["git", "-C", folder / "copy", "gc", "-q"], ["rm", "-rf", folder / "copy"], pause=22)


def sockets_of_aiohttp() -> None:
    """A web socket with a heartbeat, over which a message goes every half a minute."""
    file = script(
        """
        import asyncio, aiohttp
        from aiohttp import web

        async def echo(request):
            there = web.WebSocketResponse(heartbeat=20)
            await there.prepare(request)
            async for message in there:
                await there.send_str(message.data)
            return there

        async def main():
            app = web.Application()
            app.router.add_get("/", echo)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = site._server.sockets[0].getsockname()[1]
            async with aiohttp.ClientSession() as session, session.ws_connect(f"http://127.0.0.1:{port}/") as here:
                while True:
                    await here.send_str("hello")
                    await here.receive()
                    await asyncio.sleep(31)

        asyncio.run(main())
        """
    )
    repeat([BIN / "python", file], pause=5)


PROGRAMS = {
    each.__name__: each
    for each in (
        compiles, runs_a_test_suite, web_service_with_clients, notebook_kernel, trains_with_paceline,
        trains_with_torchrun, ray_with_an_idle_actor, spark_session, documentation_server, slow_downloads,
        browser_with_a_page, study_in_a_database, repositories, sockets_of_aiohttp,
    )
}  # fmt: skip
