"""What the agent of a node that Ray has started runs: the same as the agent of a launcher's node."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from paceline.errors import RunFailed, RunOver
from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster import engine
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.life import Life
from paceline.runtime.engines.setup import set_up
from paceline.runtime.engines.workers.forkserver import short_folder
from paceline.runtime.links.tcp.tls import CA, CERTIFICATE, KEY, MutualTls
from paceline.runtime.runs.live import Heartbeat
from paceline.training.gradients.pickling import pack_program, unpack_program
from paceline.training.jobs.job import Job


@dataclass(frozen=True)
class RunSpec:
    """What is trained, and where the head is. It travels through Ray's channel."""

    job: Job
    plan: Plan
    limit: int | None
    #: That of the driver; each agent takes it with its own rank.
    roster: Roster
    deadline: float
    #: The files of a certificate of this run; empty without TLS.
    keys: dict[str, bytes]

    def pack(self) -> bytes:
        """Pickle the program's arguments, and the spec with the user's functions and classes by value."""
        return pack_program(self)


class How(Enum):
    """How an agent has ended."""

    DONE = "done"
    #: The head cannot be reached, or has gone on without this node.
    LOST = "lost"
    #: Its process has ended without an answer.
    KILLED = "killed"
    #: The job cannot be trained on this node.
    UNFIT = "unfit"


@dataclass(frozen=True)
class AgentEnd:
    """What an agent returns to the driver, through Ray."""

    how: How
    why: str = ""


def run(spec: bytes, roster: Roster) -> AgentEnd:
    """Train this node's part, and return how that has ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the driver says it
            _train(unpack_program(spec), roster)
    except RunOver as error:
        return AgentEnd(How.DONE, str(error))
    except RunFailed as error:
        return AgentEnd(How.LOST, str(error))
    except Exception as error:
        return AgentEnd(How.UNFIT, f"{type(error).__name__}: {error}")
    return AgentEnd(How.DONE)


def _train(spec: RunSpec, roster: Roster) -> None:
    setup = set_up(spec.job, spec.plan, "ray", spec.limit, bounded=True)
    heartbeat = Heartbeat(None, setup.agenda.updates)
    with (
        with_keys(roster, spec.keys) as placed,
        engine.train(Life(setup, heartbeat, deadline=spec.deadline), placed),
    ):
        pass


@contextlib.contextmanager
def with_keys(roster: Roster, keys: dict[str, bytes]) -> Iterator[Roster]:
    """Return a roster with these keys, if there are any; they lie in a folder of this user meanwhile."""
    if not keys:
        yield roster
        return
    with tempfile.TemporaryDirectory(prefix="paceline-", dir=short_folder()) as folder:
        for name, content in keys.items():
            with open(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        yield replace(roster, credentials=MutualTls(Path(folder)))


#: The files of a certificate.
KEY_FILES = (CA, CERTIFICATE, KEY)
