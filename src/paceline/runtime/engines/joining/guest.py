"""A machine that joins a run: it proves that it knows the code, gets the job, and is a node from then on."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.algorithms.cluster.vacancies import NO_VACANCY, Vacancy
from paceline.errors import MachineError, UsageError
from paceline.runtime.engines.cluster.roster import Roster
from paceline.runtime.engines.cluster.run_spec import RunSpec, with_keys
from paceline.runtime.engines.joining.parcel import Package, Parcel, Progress, different, lacking, receive_parcel
from paceline.runtime.engines.workers.process import fork_early
from paceline.runtime.links.pairing.code import Code
from paceline.runtime.links.pairing.discovery import discover
from paceline.runtime.links.pairing.exchange import Line, visit
from paceline.runtime.links.tcp.address import Address

#: Called with lines for the person here.
Report = Callable[[str], None]
ANSWER = 600.0  # seconds that a person may think
REACH = 3.0  # seconds in which a machine has to accept or refuse a connection


@dataclass(frozen=True)
class Offer:
    """What the machine that trains says of its run, before anything of it is sent."""

    host: str
    job: str
    plan: str
    python: str
    packages: tuple[Package, ...]
    files: tuple[str, ...]
    #: Files that the job opens, and that do not travel.
    elsewhere: tuple[str, ...]
    bytes: int
    #: Where the run is led from, and the rank of that machine.
    head: Address
    head_rank: int
    #: Whether the machine that trains can open a connection to this one.
    back: bool

    @classmethod
    def of(cls, terms: dict[str, Any]) -> Offer:
        packages, head = tuple(Package(*each) for each in terms["packages"]), Address(*terms["head"])
        files, elsewhere = tuple(terms["files"]), tuple(terms["elsewhere"])
        return cls(**{**terms, "packages": packages, "head": head, "files": files, "elsewhere": elsewhere})

    def objections(self, reached: str) -> list[str]:
        """Return why this machine cannot take part, a line each; `reached` is where it reaches the other one."""
        lines = lacking(self.packages, self.python, self.host)
        lines += [
            f"{file} is not here, and does not travel: copy it" for file in self.elsewhere if not Path(file).exists()
        ]
        if not self.back:
            lines.append(
                f"{self.host} cannot open a connection to this machine: a firewall here drops what arrives; let TCP in "
                f"from {reached}, as by `ufw allow from {reached}`"
            )
        if self.head.host != reached and not _exists(self.head.host):
            lines.append(
                f"{self.host} trains at {self.head.host}, which this machine does not reach, and not at {reached}, "
                f"which it does: start it there with --address {reached}"
            )
        return lines


def parse(words: Sequence[str]) -> tuple[Address, Code]:
    """Read `[HOST:PORT] CODE`.

    Raises:
        UsageError: it is none, or no machine of this network says that it has printed the code.
    """
    if len(words) == 2:
        return Address.parse(words[0]), Code.parse(words[1])
    if len(words) != 1:
        raise UsageError("give a code, or an address and a code, as in `paceline join alice:29471 7-lantern-osprey`")
    code = Code.parse(words[0])
    return discover(code.number), code


def visit_run(
    door: Address, code: Code, consents: Callable[[Offer], bool], progress: Progress, report: Report
) -> AbstractContextManager[Guest]:
    """Join a run.

    Args:
        door: where the run lets machines in.
        code: what its screen shows.
        consents: asks the person here whether code of the other machine may run on this one.
        progress: called while the job arrives.
        report: called with lines for the person here.

    Raises:
        MachineError: this machine cannot take part; the code stays good.
        PeerRefused: the code is wrong.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-")))
        with visit(door, code) as (line, reached):
            offer = _offer(line, consents, reached, report)
            vacancy = Vacancy(**line.receive_json())
            if vacancy == NO_VACANCY:
                raise MachineError(f"all places of the run on {offer.host} are taken; --workers there gives more")
            job = receive_parcel(line, folder, progress)
        guest = Guest(offer, vacancy, job, folder, stack.pop_all())
    return closing(guest)


@dataclass(frozen=True)
class Guest:
    """This machine as a node of a run that it has joined."""

    offer: Offer
    vacancy: Vacancy
    job: bytes
    folder: Path
    _stack: ExitStack

    def enter(self) -> tuple[RunSpec, Roster, Parcel]:
        """Make the folder of the job this process's; return the run, this machine's place in it, and what has come.

        The parcel is for machines that join here, should this one lead.
        """
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        fork_early()
        from paceline.training.jobs.pickling import unpack_program

        spec: RunSpec = unpack_program(self.job)  # of the machine to which the person here has said yes
        roster = replace(spec.roster, rank=self.vacancy.rank, offer=self.vacancy.offer)
        roster = replace(roster, head=self.offer.head, head_rank=self.offer.head_rank)
        files = {place: self.folder / place for place in self.offer.files}
        parcel = Parcel(files, list(self.offer.elsewhere), self.job)
        return spec, self._stack.enter_context(with_keys(roster, spec.keys)), parcel

    def close(self) -> None:
        """Remove the files that came."""
        os.chdir("/")
        self._stack.close()


def _offer(line: Line, consents: Callable[[Offer], bool], reached: str, report: Report) -> Offer:
    """Accept what the other machine offers, or say why not."""
    line.allow(ANSWER)
    with socket.create_server(("", 0)) as listener:
        line.send_json({"host": socket.gethostname(), "port": listener.getsockname()[1]})
        terms = line.receive_json()
    try:
        offer = Offer.of(terms)
    except (TypeError, KeyError) as error:
        raise MachineError("the other machine has another version of Paceline: install the same one on both") from error
    if objections := offer.objections(reached):
        line.send_json({"answer": "no", "why": "; ".join(objections)})
        raise MachineError("this machine cannot take part yet:\n  " + "\n  ".join(objections) + "\nthe code stays good")
    for each in different(offer.packages):
        report(f"another version is here: {each}; the run goes on if it computes the same")
    if not consents(offer):
        line.send_json({"answer": "no", "why": "the person there said no"})
        raise MachineError(f"nothing of {offer.host} was run here; the code stays good")
    line.send_json({"answer": "yes"})
    return offer


def _exists(host: str) -> bool:
    """Whether a machine answers at an address: it accepts a connection, or refuses it."""
    try:
        socket.create_connection((host, 9), REACH).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
