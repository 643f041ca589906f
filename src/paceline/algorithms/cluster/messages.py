"""The messages of a cluster's processes. Every field is an integer or a tuple of integers.

On the wire a message is its kind and its integers (`pack`, `unpack`); tensors follow as the body of the frame: a
gradient with Push and Replicate, parameters with Pushed and Pulled, a whole version with Copy.

Every message may be lost, doubled, delayed, or come from an earlier epoch or view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from paceline.errors import ProtocolError

NONE = -1  # no batch, no shard, no version


class Role(IntEnum):
    """What a process of a cluster does."""

    DESK = 0
    WORKER = 1
    SERVER = 2
    #: The head of the run, which reads what servers hold and takes no part.
    HEAD = 3


class Process(NamedTuple):
    """The name of a process. Numbers are never used again: a process that is restarted gets another one."""

    role: Role
    number: int

    def __str__(self) -> str:
        return self.role.name.lower() if self.role is Role.DESK else f"{self.role.name.lower()} {self.number}"


DESK = Process(Role.DESK, 0)


class View(NamedTuple):
    """Which servers hold a shard: the first is its primary, the others are its backups."""

    shard: int
    #: Grows with each change. It contains the epoch of the desk that made it, so no two desks make the same one.
    number: int
    members: tuple[int, ...]


class Start(NamedTuple):
    """A server became the primary of a shard: what earlier views have shown beyond this version is lost."""

    view: int
    version: int
    #: The view that it continues. Nothing is known of views in between, which other primaries may have had.
    follows: int


class Acknowledged(NamedTuple):
    """A view that has acknowledged pushes to its shard."""

    shard: int
    view: int


# Between workers and the desk


class Enter(NamedTuple):
    """A worker introduces itself to a desk that does not know it."""

    #: The first batch of the block that it works on, or NONE.
    holding: int


class Entered(NamedTuple):
    """The desk knows the worker now, as worker `slot` of the plan."""

    epoch: int
    slot: int


class NextBatch(NamedTuple):
    """A worker wants a block of batches. Sent again under the same sequence number until it is answered."""

    epoch: int
    sequence: int
    #: The first batch of the block that it has pushed to every shard, or NONE.
    finished: int
    #: The views that acknowledged these pushes, each once.
    acknowledged: tuple[Acknowledged, ...]


class Leased(NamedTuple):
    """Compute these batches, one after another."""

    epoch: int
    sequence: int
    #: The first one, and how many.
    batch: int
    length: int


class AllDone(NamedTuple):
    """Every batch has been applied: the worker has finished."""

    epoch: int
    sequence: int


class Unknown(NamedTuple):
    """The desk does not know the worker, which has to enter first."""

    epoch: int


class WhichViews(NamedTuple):
    """A worker wants the newest views, since a shard's primary does not answer."""


class Views(NamedTuple):
    """The views that are valid now."""

    epoch: int
    views: tuple[View, ...]


# Between workers and shard servers


class Push(NamedTuple):
    """The gradient of a batch, for one shard; the answer brings the newest parameters."""

    shard: int
    view: int
    batch: int
    #: The version of the shard that the gradient was computed from.
    base: int
    #: The view that has shown it.
    shown: int


class Pushed(NamedTuple):
    """The shard has the batch, and so have all its backups. The newest parameters follow."""

    shard: int
    view: int
    batch: int
    version: int


class Pull(NamedTuple):
    """A worker wants the newest parameters without pushing a gradient."""

    shard: int
    view: int


class Pulled(NamedTuple):
    """The newest parameters of a shard follow."""

    shard: int
    view: int
    version: int


class Refused(NamedTuple):
    """The server is not the primary of that view. Its own view is this one."""

    shard: int
    view: int


class Late(NamedTuple):
    """The gradient was computed from parameters of an earlier round, or that are lost: pull, and compute it again."""

    shard: int
    view: int
    batch: int


# Between shard servers


class Replicate(NamedTuple):
    """The primary has applied a batch; its backups apply it as the same version."""

    view: int
    version: int
    batch: int
    worker: int
    base: int


class Replicated(NamedTuple):
    """A backup has every version up to this one."""

    view: int
    version: int


class Enrol(NamedTuple):
    """A backup has entered a view. It has this version, which the primary of an earlier view has vouched for."""

    view: int
    #: The last view whose primary has vouched for what it has.
    follows: int
    version: int


class InSync(NamedTuple):
    """The version with which a backup entered the view is part of the primary's; what follows continues it."""

    view: int
    version: int
    #: The version with which the primary entered the view. A backup that has it has every acknowledged push.
    until: int
    #: Of all primaries of the shard.
    starts: tuple[Start, ...]


class Copy(NamedTuple):
    """The primary's state, for a backup or a spare that lacks too much; the version itself follows."""

    view: int
    shard: int
    version: int
    #: The batches in it: all below `mark`, and these.
    mark: int
    above: tuple[int, ...]
    #: Of all primaries of the shard.
    starts: tuple[Start, ...]


# Between the desk and shard servers


class Poll(NamedTuple):
    """A desk wants the status of every server."""

    epoch: int


class Status(NamedTuple):
    """What a shard server holds; sent at every heartbeat and whenever it changes."""

    epoch: int
    #: Grows with each status of a server, so that a late one is not taken for news.
    serial: int
    shard: int
    view: int
    members: tuple[int, ...]
    #: The last view in which it had every push that was acknowledged before; its own view for a primary.
    synced: int
    version: int
    mark: int
    above: tuple[int, ...]
    #: The spare that a primary has brought up to date, or NONE.
    fed: int
    #: The backup that does not confirm what the primary sends it, or NONE.
    missing: int


class Propose(NamedTuple):
    """The desk wants its members to enter a view."""

    epoch: int
    shard: int
    view: int
    members: tuple[int, ...]


class SyncSpare(NamedTuple):
    """The desk wants a primary to bring a spare up to date. Sent again to a primary that has: the spare lost it."""

    epoch: int
    view: int
    spare: int


class Release(NamedTuple):
    """The shard has gone on without the server, which becomes a spare."""

    epoch: int
    shard: int
    #: The view of the server that the desk has seen; a server in a later one stays.
    view: int


Message = (
    Enter
    | Entered
    | NextBatch
    | Leased
    | AllDone
    | Unknown
    | WhichViews
    | Views
    | Push
    | Pushed
    | Pull
    | Pulled
    | Refused
    | Replicate
    | Replicated
    | Enrol
    | InSync
    | Copy
    | Poll
    | Status
    | Propose
    | SyncSpare
    | Release
    | Late
)

#: The kind of each message on the wire is its place in this list; new ones are added at its end.
KINDS: tuple[type, ...] = get_args(Message)
_NUMBERS = {message: number for number, message in enumerate(KINDS)}
#: The messages that have no tuples, so that they are their own integers; all that travel with every push are.
_FLAT = frozenset(message for message in KINDS if set(get_type_hints(message).values()) == {int})


def pack(message: Message) -> tuple[int, Sequence[int]]:
    """Return the kind and the integers of a message: tuples are preceded by their length."""
    if type(message) in _FLAT:
        return _NUMBERS[type(message)], tuple(message)  # type: ignore[arg-type]
    integers: list[int] = []
    for value in message:
        _write(value, integers)
    return _NUMBERS[type(message)], integers


def _write(value: Any, into: list[int]) -> None:
    if isinstance(value, tuple):
        if not hasattr(value, "_fields"):
            into.append(len(value))
        for each in value:
            _write(each, into)
    else:
        into.append(int(value))


def unpack(kind: int, integers: Sequence[int]) -> Message:
    """Return the message of this kind and these integers.

    Raises:
        ProtocolError: there is no such kind, or the integers are not those of such a message.
    """
    if not 0 <= kind < len(KINDS):
        raise ProtocolError(f"there is no message of kind {kind}")
    if KINDS[kind] in _FLAT and len(integers) == len(KINDS[kind]._fields):  # type: ignore[attr-defined]
        flat: Message = KINDS[kind](*integers)
        return flat
    source = iter(integers)
    try:
        message: Message = _READERS[kind](source)
    except (StopIteration, OverflowError):
        raise ProtocolError(f"{KINDS[kind].__name__} with {len(integers)} integers is incomplete") from None
    if next(source, None) is not None:
        raise ProtocolError(f"{KINDS[kind].__name__} has integers left over, of {len(integers)}")
    return message


Reader = Callable[[Iterator[int]], Any]


def _reader(hint: Any) -> Reader:
    """Return what reads a value of this type from integers."""
    if hint is int:
        return next
    if get_origin(hint) is tuple:
        element = _reader(get_args(hint)[0])
        return lambda source: tuple([element(source) for _ in range(_length(next(source)))])
    fields = [_reader(each) for each in get_type_hints(hint).values()]
    return lambda source: hint(*[field(source) for field in fields])


def _length(claimed: int) -> int:
    if claimed < 0:
        raise OverflowError
    return claimed


_READERS = [_reader(message) for message in KINDS]


# --- The batches that a shard has applied: all below a low-water mark, and some above it ------------------------------


class Applied:
    """A set of batches that grows from 0 on, in about the order of the numbers.

    Above the mark lie only batches that overtook one that is still under way, so the set stays as small as the number
    of leases.
    """

    def __init__(self, mark: int = 0, above: Iterable[int] = ()) -> None:
        self.mark, self.above = mark, set(above)
        self._advance_mark()

    def add(self, batch: int) -> None:
        self.above.add(batch)
        self._advance_mark()

    def _advance_mark(self) -> None:
        while self.mark in self.above:
            self.above.remove(self.mark)
            self.mark += 1

    def __contains__(self, batch: int) -> bool:
        return batch < self.mark or batch in self.above

    @property
    def end(self) -> int:
        """One more than the highest batch."""
        return max(self.above, default=self.mark - 1) + 1

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """The mark and the batches above it, sorted."""
        return self.mark, tuple(sorted(self.above))


def common(sets: Iterable[Applied]) -> Applied:
    """Return the batches that are in all of these sets."""
    first, *rest = sets
    end = min(each.end for each in (first, *rest))
    mark = min(each.mark for each in (first, *rest))
    return Applied(mark, (b for b in range(mark, end) if b in first and all(b in each for each in rest)))
