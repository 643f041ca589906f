"""Scripts that `mpirun` starts: what the modelled mpi4py computes, and how ranks hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.concurrency.explore.session import Session, Settings, Target

HEAD = "import sys\n\nfrom mpi4py import MPI\n\ncomm = MPI.COMM_WORLD\nother = 1 - comm.rank\n"
PROGRAMS = {
    "sends that cross": (
        "if 'repaired' in sys.argv and comm.rank:\n    item = comm.recv(source=other)\n    comm.send('b', dest=other)\n"
        "else:\n    comm.send('a', dest=other)\n    item = comm.recv(source=other)\n",
        "rank 0 calls send to rank 1 at {0}:11, rank 1 calls send to rank 0 at {0}:11",
    ),
    "a barrier that a rank does not reach": (
        "total = comm.reduce(comm.rank, op=MPI.SUM, root=0)\nif comm.rank == 0 or 'repaired' in sys.argv:\n"
        "    comm.Barrier()\n",
        "rank 0 calls Barrier at {0}:9, rank 1 has ended",
    ),
    "different collectives": (
        "if comm.rank == 0 or 'repaired' in sys.argv:\n    comm.bcast(1)\nelse:\n    comm.allreduce(1)\n",
        "rank 1 calls allreduce at {0}:10, rank 0 calls bcast at {0}:8",
    ),
    "a message with another tag": (
        "tag = comm.rank if 'repaired' not in sys.argv else 0\nrequest = comm.isend('a', dest=other, tag=tag)\n"
        "comm.recv(source=other, tag=tag)\nrequest.wait()\n",
        "rank 0 calls recv from rank 1 at {0}:9, rank 1 calls recv from rank 0 at {0}:9",
    ),
}


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def test_collectives_and_messages_do_what_real_ones_do(session: Session) -> None:
    script = Path(__file__).parent / "mpi_collectives.py"
    answer = session.explore(Target(str(script)), Settings(ranks=3, schedules=1))
    assert answer.report["verdict"] == "not found", answer.text


@pytest.mark.parametrize("name", PROGRAMS)
def test_ranks_that_hang_are_found_and_the_twin_is_silent(session: Session, tmp_path: Path, name: str) -> None:
    source, message = PROGRAMS[name]
    file = tmp_path / "app.py"
    file.write_text(HEAD + source)
    finding = session.explore(Target(str(file)), Settings(first=True)).report["finding"]
    assert finding["message"] == message.format(file)
    twin = session.explore(Target(str(file), arguments=("repaired",)), Settings(schedules=20))
    assert twin.report["verdict"] == "dismissed within bounds", twin.text


ANY_SOURCE = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
if dist.get_rank() > 0:
    dist.send(value, 0)
else:
    values = {}
    for turn in (1, 2):
        source = dist.recv(value)
        values[source if "repaired" in sys.argv else turn] = value.item()
    assert values == {1: 1.0, 2: 2.0}
"""


def test_messages_from_any_rank_come_in_any_order(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(ANY_SOURCE)
    finding = session.explore(Target(str(file)), Settings(ranks=3, first=True)).report["finding"]
    assert "AssertionError" in finding["message"]
    twin = session.explore(Target(str(file), arguments=("repaired",)), Settings(ranks=3, schedules=10))
    assert twin.report["finding"] is None, twin.text


def test_what_is_not_modelled_gives_no_verdict(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text(HEAD + "window = MPI.Win.Create(None, comm=comm)\n")
    answer = session.explore(Target(str(file)))
    assert "no verdict: mpi4py.MPI.Win cannot be explored at " in answer.text
