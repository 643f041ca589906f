"""The steps of single processes, each computed once and remembered by number.

A machine is deterministic: its state, the time and what happens give its next state and what it sends. An exploration
meets the same step of one process in thousands of worlds, so a world is a tuple of numbers, and a step is looked up.

What is known of a machine is its public face (`start`, `handle`, `tick`, `lost`, `computed`), and that everything else
it is made of can be copied and compared, attribute by attribute. Every float in it is a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, NamedTuple

from paceline.algorithms.cluster.messages import Copy, Message, Process, Pushed, Replicated, Status
from paceline.algorithms.cluster.outputs import Apply, ComputeGradient, Forget, Lost, Output, Restore, Send
from paceline.algorithms.cluster.shard import ShardMachine
from paceline.algorithms.cluster.worker import Stage

DEAD = 0  # the state of every process that was killed


class Begin(NamedTuple):
    """A process starts."""


class Noticed(NamedTuple):
    """A process takes note that its connection to another one has ended."""

    process: Process


class Computed(NamedTuple):
    """A worker has computed its batch."""


class Tick(NamedTuple):
    """Time has passed: what is due is done."""

    #: The processes whose signs of life have come meanwhile.
    alive: tuple[Process, ...]


class ProcessEvent(NamedTuple):
    """What happens to a process."""

    to: Process
    sender: Process
    what: Message | Begin | Noticed | Computed | Tick
    #: The batches of the versions that a copy brings, or that a backup confirms.
    batches: tuple[int, ...] = ()


class Transition(NamedTuple):
    """What an event leads to."""

    state: int
    sends: tuple[int, ...]
    #: The promise that the step breaks.
    fault: str | None
    #: Of a shard server: the (shard, batch) that it acknowledges, and whether it became the primary of another view.
    acknowledges: tuple[tuple[int, int], ...]
    leads: bool
    #: Of a desk: the run cannot go on.
    gives_up: bool


class Local:
    """The state of a process: its machine and, of a shard server, the batches of its versions."""

    def __init__(self, machine: Any, batches: tuple[int, ...] = ()) -> None:
        self.machine, self.batches = machine, batches


class Steps:
    """Numbers for states and events, and the steps between them."""

    def __init__(self) -> None:
        #: By number. The first state is that of the dead.
        self.locals: list[Local] = [Local(None)]
        self.events: list[ProcessEvent] = []
        #: For each event, the numbers of the connection that it comes over and of its kind.
        self.links: list[int] = []
        self._states: dict[Hashable, int] = {}
        self._events: dict[Hashable, int] = {}
        self._links: dict[Hashable, int] = {}
        self._steps: dict[tuple[int, int, int], Transition] = {}
        self._timeless: dict[int, Hashable] = {}

    def state(self, local: Local) -> int:
        """Return the number of a state; equal states have the same one."""
        key = (type(local.machine), local.batches, _freeze(local.machine))
        number = self._states.setdefault(key, len(self.locals))
        if number == len(self.locals):
            self.locals.append(local)
        return number

    def event(self, event: ProcessEvent) -> int:
        """Return the number of an event."""
        number = self._events.setdefault((type(event.what), event), len(self.events))
        if number == len(self.events):
            self.events.append(event)
            link = (event.to, event.sender, isinstance(event.what, Noticed) and event.what.process)
            self.links.append(self._links.setdefault(link, len(self._links)))
        return number

    def step(self, now: int, state: int, event: int) -> Transition:
        """Return what an event leads to."""
        transition = self._steps.get((now, state, event))
        if transition is None:
            transition = self._steps[now, state, event] = self._take(now, self.locals[state], self.events[event])
        return transition

    def is_silent(self, before: int, step: Transition) -> bool:
        """Whether a step changes nothing but times."""
        return not step.sends and self._apart(before) == self._apart(step.state)

    def _apart(self, state: int) -> Hashable:
        """Return what a state is, apart from its times."""
        if state not in self._timeless:
            local = self.locals[state]
            self._timeless[state] = (local.batches, _freeze(local.machine, times=False))
        return self._timeless[state]

    def _take(self, now: int, before: Local, event: ProcessEvent) -> Transition:
        machine, batches = _copy(before.machine), list(before.batches)
        view = getattr(machine, "view", 0)
        fault, sends, acknowledges, gives_up = _confirmed_wrongly(before, event), [], [], False
        for output in _happen(float(now), machine, event):
            if isinstance(output, Send):
                sends.append(
                    self.event(ProcessEvent(output.to, event.to, output.message, _carried(output.message, batches)))
                )
                if isinstance(output.message, Pushed):
                    acknowledges.append((output.message.shard, output.message.batch))
            elif isinstance(output, Apply):
                if output.batch in batches or output.version != len(batches) + 1:
                    fault = f"{event.to} applies batch {output.batch} as version {output.version} of {batches}"
                batches.append(output.batch)
            elif isinstance(output, Restore):
                batches = list(event.batches)
            elif isinstance(output, Forget):
                batches = []
            elif isinstance(output, ComputeGradient):
                sends.append(self.event(ProcessEvent(event.to, event.to, Computed())))
            elif isinstance(output, Lost):
                gives_up = True
        leads = isinstance(machine, ShardMachine) and machine.primary and machine.view != view
        state = self.state(Local(machine, tuple(batches)))
        return Transition(state, tuple(sends), fault, tuple(acknowledges), leads, gives_up)


def _happen(now: float, machine: Any, event: ProcessEvent) -> list[Output]:
    """Let something happen to a machine, and return what it asks for."""
    what = event.what
    if isinstance(what, Begin):
        return machine.start(now)  # type: ignore[no-any-return]
    if isinstance(what, Noticed):
        return machine.lost(now, what.process)  # type: ignore[no-any-return]
    if isinstance(what, Computed):
        return machine.computed(now) if machine.stage is Stage.COMPUTING else []
    if isinstance(what, Tick):
        for process in what.alive:
            machine.alive_sign(now, process)
        return machine.tick(now)  # type: ignore[no-any-return]
    return machine.handle(now, event.sender, what)  # type: ignore[no-any-return]


def _carried(message: Message, batches: list[int]) -> tuple[int, ...]:
    """Return the batches of the versions that a message speaks of."""
    if isinstance(message, Replicated):
        return tuple(batches[: message.version])
    return tuple(batches) if isinstance(message, Copy) else ()


def _confirmed_wrongly(primary: Local, event: ProcessEvent) -> str | None:
    """Check that what a backup confirms is what its primary has, batch by batch."""
    message, machine = event.what, primary.machine
    if isinstance(message, Replicated) and machine.primary and machine.view == message.view:
        ours = primary.batches[: message.version]
        if ours != event.batches:
            return f"{event.sender} confirms versions of batches {event.batches}, where {event.to} has {ours}"
    return None


def _copy(thing: Any) -> Any:
    """Return a copy of a machine; what never changes is shared."""
    kind = type(thing)
    if kind in (list, deque):
        return kind(map(_copy, thing))
    if kind is dict:
        return {key: _copy(value) for key, value in thing.items()}
    if kind is set:
        return set(thing)
    if kind is tuple:
        return tuple(map(_copy, thing))
    if _is_made_of_parts(thing):
        copied = object.__new__(kind)
        copied.__dict__.update((name, _copy(value)) for name, value in vars(thing).items())
        return copied
    return thing


def _freeze(thing: Any, times: bool = True) -> Hashable:
    """Return what a machine is, to compare by; if without times, also without the serial numbers of statuses."""
    kind = type(thing)
    if kind is float:
        return thing if times else None
    if kind is dict:
        return tuple([(key, _freeze(value, times)) for key, value in thing.items()])
    if kind in (list, deque, tuple):
        return tuple([_freeze(value, times) for value in thing])
    if kind is set:
        return frozenset(thing)
    if kind is Status and not times:
        unnumbered: Hashable = thing._replace(serial=0)
        return unnumbered
    if _is_made_of_parts(thing):
        return tuple([_freeze(value, times) for value in vars(thing).values()])
    return thing  # type: ignore[no-any-return]


def _is_made_of_parts(thing: Any) -> bool:
    """Whether a thing has attributes that change: neither a number, nor frozen, nor a function."""
    kind: Any = type(thing)
    return hasattr(thing, "__dict__") and not callable(thing) and kind.__hash__ is object.__hash__
