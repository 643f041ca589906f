"""What agents and the head say to each other, and how it is put into frames.

A message is a record; its kind on the wire is its place in `MESSAGES`, its fields are JSON, and bytes such as rows of
the trace or parameters follow it in the same body. Nothing that arrives is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, get_args

import torch
from torch import Tensor

from paceline.algorithms.cluster.group import AbortFlag, Accuse, Regroup, Release, Report
from paceline.algorithms.cluster.succession import Accepted, Later, Roll, Vote
from paceline.errors import FrameError
from paceline.runtime.engines.cluster.terms import Terms
from paceline.runtime.engines.workers.messages import Failed, FailureReport
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.connection import Buffer
from paceline.runtime.links.tcp.frame import FIRST_KIND
from paceline.runtime.runs.live import ProcessKind, ProcessRecord, RunEvent
from paceline.runtime.runs.record import AttemptRecord, DeathRecord
from paceline.runtime.runs.schema import from_dict, to_dict
from paceline.training.parameters.worker_state import TensorSlot, WorkerState, tensor_slots, unpacked
from paceline.training.parameters.worker_state import pack as pack_tensors

#: Roles of processes in the handshake.
AGENT, RANK = 8, 9


@dataclass(frozen=True)
class State:
    """A worker's state after an update; the bytes of its tensors follow."""

    update: int
    where: tuple[TensorSlot, ...]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Register:
    """An agent introduces its node."""

    terms: Terms
    #: Differs between machines, and each time a machine is started: processes with the same share their clock.
    boot: str
    process: int
    #: Where it listens for the others, should it lead; None if it never does.
    address: Address | None = None
    #: The number of the offer by which it has its rank; 0: none.
    offer: int = 0


@dataclass(frozen=True)
class Welcome:
    """The node belongs to the run."""

    #: The name of the run in handshakes, in hexadecimal digits.
    run: str
    #: Updates between two evaluations; 0 for none before the last.
    snapshots_every: int
    #: The run's folder at the head, if the run can be resumed; else empty.
    folder: str = ""
    #: Updates between two checkpoints; 0 if none is taken by updates.
    checkpoint_every: int = 0
    #: Updates that were made before the run was resumed, and the worker's state then, whose tensors follow; None if
    #: the run starts from the beginning.
    updates: int = 0
    state: State | None = None
    #: The lives of the run, of which a head that takes over has only the last, if it keeps checkpoints.
    lives: tuple[AttemptRecord, ...] = ()
    #: Whether the training has begun, so that the node's worker needs the state that others have.
    late: bool = False


@dataclass(frozen=True)
class Refused:
    """The run cannot begin, and why; or the node's rank is another one's by now."""

    why: str
    exit_code: int
    #: The rank as which the node may come instead; -1: none. And the number of that offer.
    rank: int = -1
    offer: int = 0


@dataclass(frozen=True)
class Clock:
    """What a clock shows: nanoseconds. The head sends its own, and an agent answers with both."""

    head: int
    agent: int = 0


@dataclass(frozen=True)
class Reported:
    """The report of a node's worker, and where it listens for the other ranks of the next group."""

    report: Report
    address: Address


@dataclass(frozen=True)
class Regrouped:
    """A group, and where each of its ranks listens."""

    group: Regroup
    addresses: tuple[Address, ...]
    #: The groups that an earlier head had formed, of which some ranks may not know the last ones.
    earlier: tuple[Regroup, ...] = ()


@dataclass(frozen=True)
class Rows:
    """What a worker is at; rows of the trace follow."""

    doing: int
    #: The number of the first of them, among all of the agent's.
    first: int


@dataclass(frozen=True)
class Ended:
    """A worker's process has ended without a message."""

    how: str
    out_of_memory: bool
    update: int
    #: Whether its agent starts another one in its place.
    replaced: bool = False


@dataclass(frozen=True)
class ServerFailed:
    """An exception ended a shard server, as of the user's optimizer."""

    number: int
    report: FailureReport


@dataclass(frozen=True)
class Finished:
    """A worker has made its last update."""

    core_wait: int
    peak_memory: int
    #: When, in nanoseconds of the node's clock.
    when: int


@dataclass(frozen=True)
class Snapshot:
    """The parameters after so many updates follow."""

    updates: int


@dataclass(frozen=True)
class Wanted:
    """Workers leave their states after this update."""

    update: int


@dataclass(frozen=True)
class Asked:
    """A node was sent a signal."""

    signal: int


@dataclass(frozen=True)
class Deliver:
    """The head wants the result of a worker that has finished."""


@dataclass(frozen=True)
class Result:
    """Parameters and buffers follow: of one worker, or from the head the trained ones."""


class ShardStart(NamedTuple):
    """What the servers of a shard begin with, of which so many bytes follow: its version, and the batches in it."""

    shard: int
    version: int
    #: All batches below `mark`, and these.
    mark: int
    above: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Serve:
    """A node is to start a worker, and a server for each of these shards; versions of shards may follow."""

    desk: Address
    shards: tuple[int, ...]
    #: Servers that hold no shard yet. A node that joins later has only such servers.
    spares: int = 0
    #: How many nodes have had this rank before. Their processes' numbers are never given out again.
    life: int = 0
    #: In a resumed run, what the servers begin with.
    starts: tuple[ShardStart, ...] = ()


@dataclass(frozen=True)
class Spare:
    """A node is to start a server that holds nothing yet, since another node with servers is lost."""


@dataclass(frozen=True)
class Began:
    """An agent has started a process."""

    kind: ProcessKind
    number: int
    #: The shard that a server holds from the start, or -1.
    shard: int
    process: ProcessRecord
    #: When, in nanoseconds of the node's clock.
    when: int


@dataclass(frozen=True)
class Exited:
    """A process that an agent has started has ended; the fields are those of `Began`."""

    kind: ProcessKind
    number: int
    pid: int
    when: int


class NodeFacts(NamedTuple):
    """What every node is to know of the newest node of a rank, should it lead."""

    rank: int
    #: Among all nodes that there have been.
    number: int
    #: Where its agent listens.
    address: Address
    #: Nanoseconds by which the run's clock, which is the first head's, is ahead of the node's.
    ahead: int
    #: The agent: one that was started again has another number.
    incarnation: int
    boot: str
    process: int


@dataclass(frozen=True)
class Standing:
    """The ranks of the run, and what every node is to know, should it lead."""

    roll: Roll
    #: Of every rank that some node has had.
    nodes: tuple[NodeFacts, ...]
    #: The time from which rows of the trace count, by the run's clock; None before the training has begun.
    origin: int | None = None
    deaths: tuple[DeathRecord, ...] = ()

    def facts(self, rank: int) -> NodeFacts | None:
        """Return what is known of a rank; None if no node has had it."""
        return next((each for each in self.nodes if each.rank == rank), None)

    def with_facts(self, facts: NodeFacts) -> Standing:
        """Return this with what is known now of a rank."""
        others = [each for each in self.nodes if each.rank != facts.rank]
        return replace(self, nodes=tuple(sorted([*others, facts])))

    def with_later(self, other: Standing) -> Standing:
        """Return this with what another node knows that is later."""
        nodes = {each.rank: each for each in sorted([*self.nodes, *other.nodes])}  # of a rank, the greatest number
        deaths, origin = (
            max(self.deaths, other.deaths, key=len),
            self.origin if self.origin is not None else other.origin,
        )
        return replace(self, nodes=tuple(nodes.values()), origin=origin, deaths=deaths)


@dataclass(frozen=True)
class Ballot:
    """A vote, with what the voter knows: it may have accepted a later roll than the one for whom it votes."""

    vote: Vote
    standing: Standing


@dataclass(frozen=True)
class Resend:
    """The head that leads from now on asks for what a node has said to the one before: its rows from this one on."""

    rows: int
    #: Snapshots that the head has, by their updates.
    snapshots: tuple[int, ...]


@dataclass(frozen=True)
class Resent:
    """A node has sent again what it was asked for."""


@dataclass(frozen=True)
class CopiedRows:
    """Rows of the head's trace follow, for its deputy: all that there are if `whole`, else the newest ones."""

    #: How many rows of each agent are in the trace then: (rank, incarnation, count).
    counts: tuple[tuple[int, int, int], ...]
    whole: bool


@dataclass(frozen=True)
class Noted:
    """An event that the head has recorded, for its deputy."""

    event: RunEvent


@dataclass(frozen=True)
class DeskMoved:
    """The desk of a later epoch listens elsewhere: every process of a node dials that one."""

    desk: Address


@dataclass(frozen=True)
class Over:
    """The run has failed or was stopped; every process ends."""

    why: str
    exit_code: int


Message: TypeAlias = (
    Register
    | Welcome
    | Refused
    | Clock
    | Reported
    | Regrouped
    | AbortFlag
    | Accuse
    | Release
    | Rows
    | Ended
    | Failed
    | ServerFailed
    | Finished
    | Snapshot
    | Deliver
    | Result
    | Over
    | Serve
    | Spare
    | Began
    | Exited
    | State
    | Wanted
    | Asked
    | Standing
    | Ballot
    | Accepted
    | Later
    | Resend
    | Resent
    | CopiedRows
    | Noted
    | DeskMoved
)
MESSAGES: tuple[type, ...] = get_args(Message)
_KINDS = {message: FIRST_KIND + number for number, message in enumerate(MESSAGES)}


class Packed(NamedTuple):
    """A message as a frame has it."""

    kind: int
    ints: tuple[int, ...]
    bodies: tuple[Buffer, ...]


def pack(message: Message, content: Sequence[Buffer] = ()) -> Packed:
    """Put a message and the bytes that follow it into a frame."""
    text = json.dumps(to_dict(message)).encode()
    return Packed(_KINDS[type(message)], (len(text),), (text, *content))


def unpack(kind: int, ints: tuple[int, ...], body: memoryview) -> tuple[Message, memoryview]:
    """Return the message of a frame, and the bytes that follow it.

    Raises:
        FrameError: it is no message of this protocol.
    """
    number = kind - FIRST_KIND
    if not 0 <= number < len(MESSAGES) or len(ints) != 1 or not 0 <= ints[0] <= len(body):
        raise FrameError("kind", f"frame {kind} with integers {ints} is no message between nodes")
    try:
        value = json.loads(bytes(body[: ints[0]]))
        message: Message = from_dict(MESSAGES[number], value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FrameError("body", f"{MESSAGES[number].__name__} cannot be read: {error}") from error
    return message, body[ints[0] :]


def state_message(update: int, state: WorkerState) -> tuple[State, Tensor]:
    """Return a worker's state as a message, and the bytes that follow it."""
    where, size = tensor_slots(state.tensors)
    content = torch.empty(size, dtype=torch.uint8)
    pack_tensors(list(state.tensors.values()), where, content)
    return State(update, tuple(where), state.facts), content


def state_of(message: State, content: memoryview) -> WorkerState:
    """Return the state that a message holds."""
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if len(content) else torch.empty(0, dtype=torch.uint8)
    return WorkerState(unpacked(raw, message.where), message.facts)


# --- How the head's parts send to nodes -------------------------------------------------------------------------------


class ToRank(Protocol):
    """Sends a message to the agent of a rank."""

    def __call__(self, rank: int, message: Message, content: Sequence[Buffer] = ()) -> None: ...
