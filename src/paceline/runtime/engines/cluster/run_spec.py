"""What a node gets from the head before it takes part, where no launcher has given it the job: it is placed by Ray, or
has joined.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.plans.plan import Plan
from paceline.runtime.engines.cluster import engine
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.outcome import Life
from paceline.runtime.engines.setup import set_up
from paceline.runtime.engines.workers.process import short_folder
from paceline.runtime.links.tcp.tls import CA, CERTIFICATE, KEY, MutualTls, make_keys
from paceline.runtime.runs.live import Heartbeat
from paceline.runtime.runs.record import CheckpointInterval
from paceline.training.jobs.job import Job
from paceline.training.jobs.pickling import pack_program

#: The files of a certificate.
KEY_FILES = (CA, CERTIFICATE, KEY)


@dataclass(frozen=True)
class RunSpec:
    """What is trained, and where the head is."""

    job: Job
    plan: Plan
    limit: int | None
    #: That of the head; each node takes it with its own rank.
    roster: Roster
    deadline: float
    #: The files of a certificate of this run; empty without TLS.
    keys: dict[str, bytes]
    #: What a node needs beside that which leads in the place of the head: when it takes checkpoints, and how many
    #: servers hold a copy of each shard.
    interval: CheckpointInterval | None = None
    backups: int = 1

    def pack(self) -> bytes:
        """Pickle the program's arguments, and the spec with the user's functions and classes by value."""
        return pack_program(self)

    def take_part(self, roster: Roster) -> None:
        """Train the part of a node that never leads, until the run is over."""
        setup = set_up(self.job, self.plan, "cluster", self.limit, bounded=True)
        heartbeat = Heartbeat(None, setup.agenda.updates)
        with (
            with_keys(roster, self.keys) as placed,
            engine.train(Life(setup, heartbeat, deadline=self.deadline), placed),
        ):
            pass


def make_run_keys() -> dict[str, bytes]:
    """Make an authority for one run alone, and the certificate that all its nodes show."""
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        (key_folder,) = make_keys(Path(folder, "keys"), days=30)
        return {name: (key_folder / name).read_bytes() for name in KEY_FILES}


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
