"""Methods of training in parallel, one frozen class each.

    method            what workers exchange                     who applies the optimizer     plans
    Alone             nothing                                   every worker                  sequential, ceiling
    AllReduce         gradients, in every update                every worker, alike           ring, tree, central, ...
    LocalSteps        replicas, after some local steps          every worker, on its own      local_sgd, easgd, ...
    Gossip            replicas, with neighbours on a graph      every worker, on its own      gossip
    ParameterServer   gradients against newer parameters        the shard, under its lock     downpour, ssp, dc_asgd
    GatheringServer   gradients, until enough have arrived      the shard, once per round     backup
    CentreServer      a replica against a centre                every worker, on its own      asynchronous easgd, ...
    PairwiseGossip    a replica with one neighbour's            every worker, on its own      asynchronous gossip
    Hogwild           one memory that all write without locks   every worker                  hogwild
    Coordinated       vectors, as a coordinator commands        the coordinator               sandblaster
    Pipeline          activations and their gradients           the worker of each stage      layers, gpipe, ...
    SplitLayers       parts of activations and gradients        every worker, for its parts   tensor, per_layer, ...
    Dataflow          values of operators and gradients         the operator's worker         ampnet
    NativeDdp         what PyTorch decides                      every worker                  ddp

A method is pure: it holds members of `core` (a collective, a gate, a rule, a schedule, ...) and implements the protocol
`Method`. All but Dataflow and NativeDdp are also the program of their workers: of effects where workers keep step
(`Synchronous`, `program`) or have stages (`core.schedules.worker`), of commands to the desk and the shards where there
is a server (`core.server.worker`). What acts on the others selects by their class, in one place per activity:
`engines.workers` runs them on processes, `engines.arithmetic` computes them in one process, `engines.virtual` times
them, `explain` draws and proves them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from paceline.core.collectives import Collective
from paceline.core.coordinators import Coordinator
from paceline.core.rules import Averaging
from paceline.core.streaming import Streaming
from paceline.plans.methods.program import Program, Worker

Devices = Literal["alone", "summed", "shared", "stages", "parts", "native"]


@dataclass(frozen=True)
class Traits:
    """The properties of a method that other parts of Paceline may ask for."""

    #: Every worker takes part in every update, so the run cannot continue without one of them.
    keeps_step: bool = True
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
    #: Every worker holds the whole model; False where it is cut, or its layers are split.
    whole_model: bool = True
    #: Every worker, or the only one, learns the loss of a whole batch in every update.
    knows_loss: bool = False
    #: The training loop checks losses for NaN and infinity (`on_nan=`).
    checks_finite: bool = True
    #: Where computed parameters are stored and what sums gradients on several GPUs; see `engines.devices`.
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
    #: The recorded plan applies to processes of this machine only; the virtual engine cannot run it.
    local_only: str = ""


@dataclass(frozen=True)
class Division:
    """The division of the training by a method, for `core.agenda.Agenda`."""

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


class Method(Protocol):
    """The interface of every method."""

    @property
    def traits(self) -> Traits: ...

    def division(self, workers: int, chunks: int) -> Division:
        """Return how a batch of `chunks` chunks per worker is divided among `workers`."""

    def prove(self, workers: int) -> None:
        """Raise `PlanError` if a table of the method would deadlock or compute a wrong result."""


@runtime_checkable
class Synchronous(Method, Protocol):
    """The interface of methods without a server and without stages, whose workers run a program."""

    @property
    def collective(self) -> Collective | None:
        """What workers exchange vectors by; None if they exchange nothing."""

    @property
    def averaging(self) -> Averaging | None:
        """How replicas that step on their own are averaged; None if gradients are summed, or nothing is exchanged."""

    @property
    def streaming(self) -> Streaming | None:
        """When replicas are averaged; None where they are not."""

    @property
    def coordinator(self) -> Coordinator | None:
        """What commands the updates; None where every update is a step of the user's optimizer."""

    def program(self, worker: Worker) -> Program:
        """Return what a worker does, as effects."""
