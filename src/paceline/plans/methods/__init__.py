"""Methods of training in parallel, one frozen class each.

    method            what workers exchange                     who applies the optimizer     plans
    Alone             nothing                                   every worker                  sequential, ceiling
    AllReduce         gradients, in every update                every worker, alike           ring, tree, central, ...
    LocalSteps        replicas, after some local steps          every worker, on its own      local_sgd, easgd, ...
    Gossip            replicas, with neighbours on a graph      every worker, on its own      gossip
    ParameterServer   gradients against newer parameters        the shard, under its lock     downpour, ssp, ...
    GatheringServer   gradients, until enough have arrived      the shard, once per round     backup
    CentreServer      a replica against a centre                every worker, on its own      asynchronous easgd, ...
    PairwiseGossip    a replica with one neighbour's            every worker, on its own      asynchronous gossip
    Hogwild           one memory that all write without locks   every worker                  hogwild
    Coordinated       vectors, as a coordinator commands        the coordinator               sandblaster
    Pipeline          activations and their gradients           the worker of each stage      layers, gpipe, ...
    SplitLayers       parts of activations and gradients        every worker, for its parts   tensor, per_layer, ...
    Dataflow          values of operators and gradients         the operator's worker         ampnet
    NativeDdp         what PyTorch decides                      every worker                  ddp

A method is pure: it holds members of `algorithms` (a collective, a gate, a rule, a schedule, ...), states its traits,
and answers what the rest of Paceline asks of any method: its `division`, its `program`, `prove`, `predict`, `picture`
and `claim`. No one outside this folder asks for its class. All but NativeDdp are also the program of their workers: of
effects where workers keep step (`Synchronous`, `program`), have stages (`algorithms.schedules.worker`) or operators
(`algorithms.dataflow.worker`), of commands to the desk and the shards where there is a server (`Server`,
`algorithms.server.worker`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from paceline.algorithms.collectives import Collective
from paceline.algorithms.coordinators import Coordinator
from paceline.algorithms.rules import Averaging, Exchanging, Rule
from paceline.algorithms.rules.averaging import AdPsgd, Streaming
from paceline.algorithms.rules.gradients import Plain
from paceline.algorithms.server.gates import Gate
from paceline.algorithms.server.shard import Gathering, Shard
from paceline.algorithms.server.version_slots import ReplicaSlots, VersionSlots
from paceline.algorithms.server.worker import Client
from paceline.algorithms.server.worker import Program as ServedProgram
from paceline.algorithms.splits import Mesh
from paceline.plans.methods.prediction import Estimate, Prices, Weights
from paceline.plans.methods.program import Program, Worker
from paceline.plans.methods.views import Claim, Picture, Served

#: Plans that several machines run, for the advice of those that one machine alone runs.
IN_STEP = "ring, tree, downpour, ssp, local_sgd and diloco"
T = TypeVar("T")
Devices = Literal["alone", "summed", "shared", "stages", "parts", "native"]


@dataclass(frozen=True)
class Traits:
    """The properties of a method that other parts of Paceline may ask for."""

    #: Every worker takes part in every update, so the run cannot continue without one of them.
    synchronous: bool = True
    #: All workers hold the same parameters and optimizer state after every update.
    agrees: bool = False
    #: The user's optimizer works at the shards of a server, on the shard's own state.
    optimizer_at_server: bool = False
    #: The method applies the user's optimizer; a coordinator makes its own steps.
    uses_optimizer: bool = True
    #: Gradients of embedding tables may be sparse.
    takes_sparse: bool = False
    #: A shard holds the gradients of a version until it has enough of them; one that comes later is computed again.
    gathers: bool = False
    #: An update may compute the same batch more than once.
    repeats: bool = False
    #: Pushes are applied one at a time, so that each has a place in an order.
    versioned: bool = True
    #: Other workers read the parameters that a forward pass of this worker uses, or hold copies of them.
    shares_parameters: bool = False
    #: What a worker holds of the model: all of it, stages, parts of its layers, or operators, each of which makes
    #: updates of its own, of gradients of several batches perhaps.
    holds: Literal["replica", "stages", "parts", "operators"] = "replica"
    #: Every worker, or the only one, learns the loss of a whole batch in every update.
    knows_loss: bool = False
    #: Workers exchange something; False where each trains alone.
    exchanges: bool = True
    #: Workers add their gradients up in every update, and all wait for the slowest.
    sums_gradients: bool = False
    #: Every update is the gradient of a whole batch, at the newest parameters.
    whole_batch: bool = False
    #: Workers hold one model and one state of the optimizer between them, after every update.
    one_model: bool = False
    #: The training loop checks losses for NaN and infinity (`on_nan=`).
    checks_finite: bool = True
    #: Where computed parameters are stored and what sums gradients on several GPUs; see `engines.setup`.
    devices: Devices = "shared"
    #: The local engine records what the method does in the trace; PyTorch's own code does not.
    traced: bool = True
    #: Why a recorded run cannot be replayed; empty where it can.
    not_replayable: str = ""
    #: Why the method cannot follow a user-defined loop (`paceline.parallel`); empty where it can.
    needs_train: str = ""
    #: Why `gradient_clip_norm=` cannot be honoured; empty where it can.
    cannot_clip: str = ""
    #: Why `on_nan="skip"` cannot be honoured; empty where it can.
    cannot_skip: str = ""
    #: Why the scaled loss of `precision="16-mixed"` cannot be honoured; empty where it can.
    cannot_scale: str = ""
    #: Why checkpoints cannot be taken; empty where they can.
    no_checkpoints: str = ""
    #: Why codecs cannot be used, beyond what the plan's options say; empty where they can.
    no_codec: str = ""
    #: Why several machines cannot run it, and what to use there; empty where they can.
    one_machine: str = ""
    #: The recorded plan applies to processes of this machine only; the virtual engine cannot run it.
    local_only: str = ""

    @property
    def whole_model(self) -> bool:
        return self.holds == "replica"

    @property
    def divided(self) -> bool:
        """Whether the model is divided before the start, so that a worker's time and memory follow from its part."""
        return self.holds in ("stages", "parts")


@dataclass(frozen=True)
class Division:
    """The division of the training by a method, for `algorithms.agenda.Agenda`."""

    #: Chunks that a batch is cut into.
    parts: int
    #: Updates that a worker leases at once.
    block: int = 1
    #: Leases that an update is divided into.
    shares: int = 1
    #: Parts of the data that each train a replica of their own; 0 if a lease is simply the next batch.
    data_parts: int = 0
    #: Workers whose replicas make the trained model: 1 where all agree at the end, 0 where a server holds it.
    results: int = 1


def computed(function: Callable[[Any], T]) -> T:
    """Make an attribute of what a method computes of its parts, once."""
    return cached_property(function)  # type: ignore[return-value]


class Method(ABC):
    """What every method answers. An attribute has the value of most methods; a method states what differs."""

    traits: Traits
    #: The server that holds the parameters: the method itself, or one between the replicas of a pipeline.
    server: Server | None = None
    #: How replicas that step on their own are averaged with all others or with neighbours.
    averaging: Averaging | None = None
    #: How a replica that steps on its own is exchanged with a centre.
    exchange: Exchanging | None = None
    #: Updates between two exchanges; 0 where there is one at the end alone.
    exchange_every: int = 1
    #: Parts of the parameters that replicas exchange one after another.
    fragments: int = 1
    #: After an update something may be under way that the end of a run brings together.
    unflushed: bool = False
    #: Messages are added up on their way, so that a codec has to allow that.
    sums_messages: bool = False
    #: Where the model is cut, joined by +; empty where that is balanced, None where it is not cut.
    cuts: str | None = None
    #: The text of a table of the user's own.
    own_table: str = ""
    #: MiB that a worker may use; 0 for no bound.
    memory: int = 0
    #: The plans that a measurement of this one says something about: "meeting", "push", "ddp", "stages", ...
    family: str = "alone"
    #: What a worker has besides its replica, as `planner.heap` knows it.
    copies: str = "vector"

    @abstractmethod
    def division(self, workers: int, chunks: int) -> Division:
        """Return how a batch of `chunks` chunks per worker is divided among `workers`."""

    @abstractmethod
    def prove(self, workers: int) -> None:
        """Raise `PlanError` if a table of the method would deadlock or compute a wrong result."""

    @abstractmethod
    def predict(self, prices: Prices) -> Estimate:
        """Return the seconds of an update, by those of its parts; raise `NotPredicted` where that is unknown."""

    @abstractmethod
    def picture(self, workers: int) -> Picture:
        """Return what `paceline draw` shows."""

    @abstractmethod
    def claim(self, workers: int) -> Claim:
        """Return what `paceline prove` proves."""

    def canonical(self, chunks: int, sizes: tuple[int, ...]) -> Method:
        """Return the method with the chunks of a batch summed in the order of one tree; `sizes` are of shares."""
        return self

    @property
    def name(self) -> str:
        return type(self).__name__

    def part_bytes(self, workers: int, cost: Weights) -> float | None:
        """Return about the bytes of tensors of a worker with a part of the model; None where it has a replica."""
        return None

    def mesh(self, workers: int) -> Mesh:
        """Return the axes along which workers lie; raise `PlanError` if so many do not fill them."""
        return Mesh((("data", workers),))

    def count(self, plan: str, options: Mapping[str, Any], stated: bool) -> int:
        """Return the number of workers by a plan's options; `stated` is whether the user gave it."""
        workers: int = options.get("workers", 1)
        return workers


class Synchronous(Method):
    """A method without a server and without stages, whose workers run a program."""

    #: What workers exchange vectors by; None if they exchange nothing.
    collective: Collective | None
    #: When replicas are averaged; None where they are not.
    streaming: Streaming | None = None
    #: What commands the updates; None where every update is a step of the user's optimizer.
    coordinator: Coordinator | None = None

    @abstractmethod
    def program(self, worker: Worker) -> Program:
        """Return what a worker does, as effects."""


class Server(Method):
    """A method with a server: a desk that leases batches, and shards that answer pushes."""

    #: Decides which worker may begin a batch.
    gate: Gate
    #: Applies gradients that arrive at a shard.
    rule: Rule = Plain()
    #: Parts of the parameters, each under a lock of its own.
    shards: int = 1
    #: Decides which versions of a shard are in memory at once.
    slots: type[VersionSlots] | type[ReplicaSlots] = VersionSlots
    #: What a worker does: the commands that it gives to the desk and the shards.
    program: Callable[[Client], ServedProgram]
    #: Pushes that make an update together; 0 where each makes one.
    gathers: int = 0
    #: Which two replicas are averaged in a push.
    pairing: AdPsgd | None = None
    family, copies = "push", "server"

    @computed
    def server(self) -> Server:
        return self

    def machine(self, workers: int, pending_owners: int = 0) -> Shard | Gathering:
        """Make the state machine that answers the pushes to a shard."""
        return Gathering(workers, self.gathers) if self.gathers else Shard(workers, pending_owners)

    def prove(self, workers: int) -> None:
        """Do nothing: a gate is proved by every interleaving (`claim`), which takes too long for a start."""

    def claim(self, workers: int) -> Claim:
        return Served()
