"""Time to accuracy between four emulated hosts: methods and codecs beside one process and DDP with its own hooks.

    python benchmarks/compression/hosts.py [--lines "100 Mbit/s, 1 ms"] [--sizes 1] [--minutes 4]
    python benchmarks/compression/hosts.py --table

Each training is a line of hosts.jsonl as soon as it is done; the command continues where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.testing.survival.hosts import Host, possible, slow_hosts

from paceline.runtime.runs.record import Evaluation
from paceline.runtime.runs.verdict import seconds_to_hold

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent / "four_hosts"), str(FOLDER.parent)]
from harness import add_line, lines_of, table  # noqa: E402
from run import HOSTS, LINES, sent  # noqa: E402

FILE = FOLDER / "hosts.jsonl"
#: Milliseconds of a pass over 100 samples, by millions of parameters: four times what the arithmetic takes on one core.
PASS = {"1": "40", "11": "400"}
TARGET = 0.80
#: Updates, samples of an update, updates between two evaluations, and the learning rate: one step for the samples of
#: four workers has four times the rate of one for a worker's own.
Shape = tuple[int, int, int, str]
IN_STEP: Shape = (240, 400, 10, "0.4")
LOCAL: Shape = (240, 400, 10, "0.1")
SERVED: Shape = (960, 100, 40, "0.1")
METHODS: dict[str, Shape] = {
    "sequential": (960, 100, 40, "0.1"),
    "ddp": IN_STEP, "ddp half": IN_STEP, "ddp powersgd": IN_STEP,
    "ring": IN_STEP, "ring:codec=half": IN_STEP, "ring:codec=int8": IN_STEP, "ring:codec=onebit": IN_STEP,
    "ring:codec=topk:0.01": IN_STEP, "ring:codec=powersgd:2": IN_STEP,
    "downpour": SERVED, "downpour:codec=topk:0.01,pull=topk:0.01": SERVED,
    "local_sgd:every=8": LOCAL, "diloco:every=8": LOCAL, "diloco:every=8,codec=int8": LOCAL,
    "diloco:every=8,codec=onebit": LOCAL, "diloco:every=8,fragments=4": LOCAL,
    "diloco:every=8,fragments=4,overlap=2": LOCAL, "diloco:every=8,fragments=4,overlap=2,codec=onebit": LOCAL,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default=";".join(LINES), help="separated by semicolons")
    parser.add_argument("--sizes", default="1", help="millions of parameters: 1, 11 or both, with a comma")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no training after this time")
    parser.add_argument("--table", action="store_true", help="print the table of what is there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that no host is left
    found = lines_of(FILE)
    if not options.table:
        if not possible():
            raise SystemExit("this process may not make network namespaces: run it as root, or in a container that may")
        measure(options, found)
    print(page(found))


def measure(options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Train by every method that is not there yet."""
    end = time.monotonic() + 60 * options.minutes
    for size in options.sizes.split(","):
        for line in options.lines.split(";"):
            for method in options.methods.split(";"):
                key = {"size": size, "line": "" if method == "sequential" else line, "method": method}
                if any(key.items() <= each.items() for each in found):
                    continue
                if time.monotonic() > end:
                    return
                found.append(key | trained(size, line, method))
                print({k: v for k, v in found[-1].items() if k != "history"}, flush=True)
                add_line(FILE, found[-1])


def trained(size: str, line: str, method: str) -> dict[str, Any]:
    """Train once, and return the evaluations and the bytes that all hosts have sent."""
    updates, batch, every, rate = METHODS[method]
    settings = {"SIZE": size, "PASS": PASS[size], "BATCH": str(batch), "EVERY": str(every), "RATE": rate}
    settings["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        if method == "sequential":
            processes = [started(["env", *command(method, folder, updates)], settings)]
            return read(method, folder, finished(processes), 0)
        shape, mtu = LINES[line]
        with slow_hosts(HOSTS, f"pt{os.getpid() % 997}", shape, mtu) as hosts:
            processes = [
                started(["ip", "netns", "exec", host.name, *command(method, folder, updates)],
                        settings | ranked(rank, host, hosts[0]))
                for rank, host in enumerate(hosts)
            ]  # fmt: skip
            return read(method, folder, finished(processes), sum(sent(host) for host in hosts))


def command(method: str, folder: str, updates: int) -> list[str]:
    if method.startswith("ddp"):
        _, _, hook = method.partition(" ")
        return [sys.executable, str(FOLDER / "hosts_ddp.py"), str(updates), hook or "none"]
    alone = [] if method == "sequential" else ["--trusted-network"]
    given = ["--plan", method, "--max-updates", str(updates), "--runs", folder, "--json", "--quiet", *alone]
    return [sys.executable, "-m", "paceline", "train", str(FOLDER / "hosts_job.py"), *given]


def ranked(rank: int, host: Host, head: Host) -> dict[str, str]:
    """Return what tells a process its rank: for Paceline, and for torch.distributed."""
    return {
        "PACELINE_RANK": str(rank), "PACELINE_NODES": str(HOSTS), "PACELINE_HEAD": f"{head.address}:29400",
        "PACELINE_TOKEN": "5ca1ab1e" * 4, "RANK": str(rank), "WORLD_SIZE": str(HOSTS), "MASTER_ADDR": head.address,
        "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": f"{host.name}t",
    }  # fmt: skip


def started(words: Sequence[str], settings: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """Wait until all have ended; return what the first one has printed."""
    try:
        said = [process.communicate(timeout=1200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, said, strict=True):
        if process.returncode:
            raise SystemExit(error.decode())
    return said[0][0].decode()


def read(method: str, folder: str, printed: str, sent: int) -> dict[str, Any]:
    """Return the evaluations of a run."""
    if method.startswith("ddp"):
        history = json.loads(printed)["history"]
    else:
        (run,) = [path for path in Path(folder).iterdir() if path.is_dir()]
        history = json.loads((run / "run.json").read_text())["history"]
    return {"bytes": sent, "history": [[h["updates"], round(h["seconds"], 2), h["test_accuracy"]] for h in history]}


def page(found: Sequence[dict[str, Any]]) -> str:
    """Return the trainings as tables of Markdown, one for each size and line."""
    pages = []
    header = ("method", f"seconds to hold {TARGET:.0%}:", "accuracy at the end:", "MB sent per 1,000 samples:")
    for size, line in sorted({(each["size"], each["line"]) for each in found if each["line"]}):
        rows = [each for each in found if each["size"] == size and each["line"] in ("", line)]
        lines = []
        for each in rows:
            history = [Evaluation(u, s, {"test_accuracy": a}) for u, s, a in each["history"]]
            held = seconds_to_hold(history, "test_accuracy", TARGET)
            updates, batch, *_ = METHODS[each["method"]]
            sent = each["bytes"] / 1e6 / (updates * batch) * 1000
            shown = f"{held:.1f}" if held is not None else f"not in {history[-1].seconds:.0f}"
            last = sum(a for _, _, a in each["history"][-3:]) / len(each["history"][-3:])
            lines.append((each["method"], shown, f"{last:.1%}", f"{sent:,.1f}"))
        pages.append(f"\n{size} million parameters, {line}\n\n{table(header, lines)}")
    return "".join(pages)


if __name__ == "__main__":
    main()
