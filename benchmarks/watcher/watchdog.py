"""What gloo's timeout does about ranks that hang: `python watchdog.py [--settings 10,10d] [FAMILY...]`.

Every program of torchrun is run with a timeout of its process group, which a user would pass to `init_process_group`;
with "d" after the seconds also with `TORCH_DISTRIBUTED_DEBUG=DETAIL`, by which PyTorch compares collectives. Noted is
whether the job ended by it, after how many seconds, and whether the rank that is named is the cause. Results are added
to watchdog.json, and what is there is not run again.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from catalogue import TORCHRUN, VERDICT, cause_of, folder, names_of, size_of
from harness import read, write

from paceline.concurrency.watcher.processes import proc

#: What a user would write into the call; it then starts the program.
WITH_TIMEOUT = """
import datetime, runpy, sys, time, torch.distributed as dist
def init(*given, _begin=dist.init_process_group, **named):
    _begin(*given, **{{"timeout": datetime.timedelta(seconds={timeout}), **named}})
    print("BEGUN", time.time(), file=sys.stderr, flush=True)
dist.init_process_group = init
sys.argv = ["programs", {family!r}, {name!r}]
runpy.run_module("programs", run_name="__main__")
"""
#: PyTorch names ranks that are missing, or elsewhere; torchrun names the first one that failed.
_BLAMED = (
    re.compile(r"Ranks? (\d+) failed to pass monitoredBarrier"),
    re.compile(r"Detected mismatch between collectives on ranks\. Rank (\d+) is running"),
    re.compile(r"Root Cause.*?rank\s*:\s*(\d+)", re.DOTALL),
)
_TIMED_OUT = re.compile(r"Timed out|monitoredBarrier|Detected mismatch")
_PATIENCE = 40.0  # seconds after the timeout


def run(family: str, name: str, setting: str) -> dict[str, object]:
    """Run a program until it ends, or is ended well after the timeout."""
    with tempfile.TemporaryDirectory() as scratch:
        timeout = float(setting.rstrip("d"))
        script = Path(scratch) / "with_timeout.py"
        script.write_text(WITH_TIMEOUT.format(timeout=timeout, family=family, name=name))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size_of(0)), "--standalone"]
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VARIANT": "0",
            "TMPDIR": scratch,
            "PYTHONPATH": str(folder()),
        }
        if setting.endswith("d"):
            variables["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        job = subprocess.Popen(
            [*launcher, script], cwd=folder(), env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, said = job.communicate(timeout=timeout + _PATIENCE)
        except subprocess.TimeoutExpired:
            for pid in reversed(proc.tree([job.pid])):
                os.kill(pid, signal.SIGKILL)
            _, said = job.communicate()
        ended = time.time()
    begun = re.findall(r"BEGUN ([\d.]+)", said)
    blamed = next(filter(None, (each.search(said) for each in _BLAMED)), None)
    wanted = cause_of(f"{family}.{name}", size_of(0), 0)
    return {
        "hangs": VERDICT[family] == "deadlocked",
        "ended by the timeout": _TIMED_OUT.search(said) is not None,
        "seconds": round(ended - float(begun[0])) if begun else None,
        "blamed": int(blamed[1]) if blamed else None,
        "cause": wanted,
        "blames the cause": bool(blamed) and f"rank {blamed[1]}" in wanted.split(", "),
    }


def main() -> None:
    """Run all programs of torchrun with all settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("families", nargs="*", default=sorted(TORCHRUN))
    parser.add_argument("--settings", default="10,10d")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--within", type=float, default=86400.0, help="begin none that could last longer, in seconds")
    given = parser.parse_args()
    found = read("watchdog.json").get("programs", {})
    wanted = {
        f"{family}.{name}, {setting}": (family, name, setting)
        for setting in given.settings.split(",")
        for family in given.families
        for name in names_of(family)
    }

    began = time.monotonic()

    def add(label: str) -> None:
        longest = float(wanted[label][2].rstrip("d")) + _PATIENCE
        if label not in found and time.monotonic() + longest < began + given.within:
            found[label] = run(*wanted[label])
            write({"programs": dict(sorted(found.items()))}, "watchdog.json", print_path=False)

    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(add, wanted))
    for label in wanted:
        sys.stdout.write(f"{label:48}{found.get(label, 'not run')}\n")


if __name__ == "__main__":
    main()
