"""Four hosts on a slow network: every plan of a cluster by the command that users type, and one process beside them.

    python benchmarks/four_hosts/run.py [--lines "1 Gbit/s"] [--plans ring,downpour] [--seconds 8]

Continues where an earlier call has stopped; `--again` begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from paceline.testing.survival.hosts import Host, possible, slow_hosts
from paceline.testing.survival.slow_wire import Line

from paceline.runtime.runs.trace import Kind, Trace

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))
from harness import add_line, lines_of, table, write  # noqa: E402

HOSTS, PASS, SHARE = 4, 5.0, 100  # milliseconds of a pass over so many samples
#: The bytes of a packet are those of Ethernet; of jumbo frames where the wire has to carry many.
LINES = {"1 Gbit/s, 0.2 ms": (Line(0.2e-3, 1e9 / 8), 9000), "100 Mbit/s, 1 ms": (Line(1e-3, 100e6 / 8), 1500)}
#: Each worker has SHARE samples of an update under plans in step, where a batch is cut into parts.
IN_STEP = ("ring", "tree", "halving_doubling", "central", "local_sgd:every=8", "diloco:every=8", "gossip")
SERVED = ("downpour", "downpour:shards=4", "ssp:bound=3", "dc_asgd")
FIRST = 0.3  # of a run's updates that are left out: connections, warm-up


@dataclass(frozen=True)
class Measured:
    """One run."""

    line: str
    plan: str
    samples_per_second: float
    #: That all hosts have sent, for each sample.
    bytes_per_sample: float
    #: The share of the workers' time in which they waited for others.
    waiting: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default=";".join(LINES), help="separated by semicolons")
    parser.add_argument("--plans", default=",".join([*IN_STEP, *SERVED]))
    parser.add_argument("--seconds", type=float, default=8.0, help="of a run, if nothing were exchanged")
    parser.add_argument("--again", action="store_true", help="begin a new runs.jsonl")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that no host is left
    if not possible():
        raise SystemExit("this process may not make network namespaces: run it as root, or in a container that may")
    kept = FOLDER / "runs.jsonl"
    if options.again:
        kept.unlink(missing_ok=True)
    found = [Measured(**each) for each in lines_of(kept)]
    for line, plan in [
        ("", "sequential"),
        *((a, b) for a in options.lines.split(";") for b in options.plans.split(",")),
    ]:
        if any((each.line, each.plan) == (line, plan) for each in found):
            continue
        measured = one_process(options.seconds) if not line else four_hosts(line, plan, options.seconds)
        print(measured, flush=True)
        found.append(measured)
        add_line(kept, asdict(measured))
    write({"runs": [asdict(each) for each in found]})
    print(page(found))


def one_process(seconds: float) -> Measured:
    """Measure one process alone, with batches as large as a worker's part."""
    with tempfile.TemporaryDirectory() as folder:
        words = train("sequential", Path(folder), int(seconds * 1000 / PASS))
        finish([subprocess.Popen(words, env=environment(SHARE), stdout=subprocess.PIPE, stderr=subprocess.PIPE)])
        return read("", "sequential", Path(folder), 0)


def four_hosts(line: str, plan: str, seconds: float) -> Measured:
    """Measure a plan on hosts that are connected by such lines."""
    shape, mtu = LINES[line]
    in_step, passes = name_of(plan) in map(name_of, IN_STEP), int(seconds * 1000 / PASS)
    # An update of a plan in step is a pass of each worker, one of a server a pass of one of them.
    updates, batch = (passes, HOSTS * SHARE) if in_step else (HOSTS * passes, SHARE)
    name = f"pf{os.getpid() % 997}"
    with tempfile.TemporaryDirectory() as folder, slow_hosts(HOSTS, name, shape, mtu) as hosts:
        words = [*train(plan, Path(folder), updates), "--trusted-network"]
        finish([start(words, rank, host, hosts[0], batch) for rank, host in enumerate(hosts)])
        return read(line, plan, Path(folder), sum(sent(host) for host in hosts))


def name_of(plan: str) -> str:
    """Return a plan without its options, of which a codec may be one."""
    return plan.partition(":")[0]


def train(plan: str, folder: Path, updates: int) -> list[str]:
    given = ["--plan", plan, "--max-updates", str(updates), "--runs", str(folder), "--json", "--quiet"]
    return [sys.executable, "-m", "paceline", "train", str(FOLDER / "job.py"), *given]


def environment(batch: int) -> dict[str, str]:
    return os.environ | {"BATCH": str(batch), "PASS": str(PASS), "OMP_NUM_THREADS": "1"}


def start(words: Sequence[str], rank: int, host: Host, head: Host, batch: int) -> subprocess.Popen[bytes]:
    """Start the node of a rank on its host."""
    named = {
        "PACELINE_RANK": str(rank), "PACELINE_NODES": str(HOSTS), "PACELINE_HEAD": f"{head.address}:29400",
        "PACELINE_TOKEN": "5ca1ab1e" * 4,
    }  # fmt: skip
    return subprocess.Popen(
        ["ip", "netns", "exec", host.name, *words], env=environment(batch) | named, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(nodes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all nodes have ended."""
    try:
        said = [node.communicate(timeout=400)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    failed = [text.decode() for node, text in zip(nodes, said, strict=True) if node.returncode]
    if failed:
        raise SystemExit(failed[0])


def sent(host: Host) -> int:
    """Return the bytes that have left a host."""
    words = ["ip", "-n", host.name, "-s", "-j", "link", "show", f"{host.name}t"]
    (shown,) = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
    count: int = shown["stats64"]["tx"]["bytes"]
    return count


def read(line: str, plan: str, runs: Path, sent: int) -> Measured:
    """Return what a run's trace says of its speed, without the run's beginning."""
    (run,) = [path for path in runs.iterdir() if path.is_dir()]
    trace = Trace.open(run / "trace.arrow")
    rows = trace.of_kind(Kind.COMPUTE)
    rows = rows[np.argsort(rows["end"])]
    first = int(FIRST * len(rows))
    counted, begun, ended = rows[first + 1 :], rows["end"][first], rows["end"][-1]
    seconds, workers = float(ended - begun) / 1e9, len(np.unique(rows["worker"]))
    waited = trace.rows["waited"][trace.rows["start"] >= begun].sum()
    return Measured(
        line, plan, round(float(counted["samples"].sum()) / seconds), round(sent / float(rows["samples"].sum()), 1),
        round(float(waited) / 1e9 / seconds / workers, 3),
    )  # fmt: skip


def page(found: Sequence[Measured]) -> str:
    """Return the runs as a table of Markdown."""
    alone = next((each.samples_per_second for each in found if not each.line), None)
    heads = ("network", "plan", "samples/s:", "beside one process:", "bytes sent per sample:", "waiting:")
    lines = []
    for each in found:
        beside = f"{each.samples_per_second / alone:.2f}" if alone else ""
        plan, speed = each.plan if each.line else "one process", f"{each.samples_per_second:,.0f}"
        lines.append((each.line, plan, speed, beside, f"{each.bytes_per_sample:,.0f}", f"{each.waiting:.0%}"))
    return table(heads, lines)


if __name__ == "__main__":
    main()
