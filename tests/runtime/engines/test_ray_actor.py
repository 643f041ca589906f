"""The process of an agent that Ray has started ends with its raylet, and after its run."""

from __future__ import annotations

import subprocess
import sys

SECONDS = 120.0  # that a process may take on a busy machine

AGENT = """
import time
from paceline.runtime.engines.ray_actor import end_with_parent

end_with_parent()
print("ready", flush=True)
time.sleep(600)
"""
RAYLET = f"""
import subprocess, sys

subprocess.run([sys.executable, "-c", {AGENT!r}])
"""
RUN = """
import sys, time, types
from paceline.runtime.engines import ray_actor

ray_actor.LINGER = 0.1
sys.modules["paceline.runtime.engines.cluster.ray_agent"] = types.SimpleNamespace(run=lambda spec, roster: "done")
cluster = types.ModuleType("paceline.runtime.engines.cluster")
cluster.ray_agent = sys.modules["paceline.runtime.engines.cluster.ray_agent"]
sys.modules["paceline.runtime.engines.cluster"] = cluster
print(object.__new__(ray_actor.RayAgent).run(b"", None), flush=True)
time.sleep(600)
"""


def test_an_agent_ends_with_its_raylet() -> None:
    with subprocess.Popen([sys.executable, "-c", RAYLET], stdout=subprocess.PIPE, text=True) as raylet:
        assert raylet.stdout is not None
        assert raylet.stdout.readline() == "ready\n"
        raylet.kill()
        raylet.communicate(timeout=SECONDS)  # the pipe ends with the agent, which has inherited it


def test_an_agent_ends_after_its_run() -> None:
    ended = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, timeout=SECONDS)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
