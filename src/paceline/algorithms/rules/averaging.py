"""Rules of replicas that train on their own and are averaged: all at once, through a centre, or with neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.algorithms.chance import mix
from paceline.algorithms.collectives.whole_vectors import Neighbours
from paceline.algorithms.rules import Memory

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MapReduce:
    """Parallel SGD as map and reduce: a model is trained on each part of the data; the result is their mean.

    Zinkevich, Weimer, Smola and Li, "Parallelized stochastic gradient descent", NeurIPS 2010, algorithm 3: the data are
    shuffled and cut into parts once; for every part i, all from the same start w_0,

        map       w_i  <-  SGD(w_0, part i)
        reduce    w    <-  (w_1 + ... + w_N) / N

    A part is a lease: a free worker takes the next one, so there may be many more parts than workers, and the part of a
    dead worker is trained again by another, to the same bits. The user's optimizer starts without state for each part,
    and a schedule counts the part's own steps. Not to be confused with `model_averaging`, where each worker's chunk of
    every batch is its own and the parts change from epoch to epoch.
    """

    parts: int
    every = 1

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def carries(self, parameter: Tensor) -> Memory:
        return {"start": parameter.detach().clone()}

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        centre.add_(mine - carried["start"], alpha=1.0 / self.parts)


@dataclass(frozen=True)
class ModelAveraging:
    """Model averaging: workers train on their own for a while, then all take the mean of their parameters.

        w_i  <-  (w_1 + ... + w_P) / P        after every `every` local steps

    - every = 0, once at the end: `parallel_sgd`, Zinkevich et al., "Parallelized stochastic gradient descent", NeurIPS
      2010;
    - every = h: `local_sgd`, Stich, "Local SGD converges fast and communicates little", ICLR 2019; also known as
      periodic or iterative averaging, and as the core of federated averaging (McMahan et al., 2017).

    A local step sees the worker's chunk of the batch, so with plain SGD and every = 1 it is the synchronous plan. The
    state of the user's optimizer (momentum) stays with the worker. Not to be confused with averaging the iterates of
    one process (torch.optim.swa_utils).
    """

    every: int = 10
    mixes_first = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        return value

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        value.copy_(mean)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return value


@dataclass(frozen=True)
class DPsgd(ModelAveraging):
    """Decentralised parallel SGD: no centre; in every step each worker mixes its parameters with its neighbours'.

    Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NeurIPS 2017 (D-PSGD). With doubly
    stochastic weights W over a graph, and g_i the gradient at w_i as it was before the mixing,

        w_i  <-  sum over neighbours j of W_ij w_j
        w_i  <-  optimizer(w_i, g_i)

    The result is the mean of all replicas, which no collective computes. On the complete graph with plain SGD this is
    the synchronous plan. Also known as gossip SGD. Not to be confused with AD-PSGD (Lian et al., ICML 2018), where
    pairs mix without waiting for the rest.

    Model averaging after every step, where the mean is that of the neighbours and comes before the own step.
    """

    every: int = 1
    mixes_first = True


@dataclass(frozen=True)
class AdPsgd:
    """Asynchronous decentralised SGD: a worker whose gradient is ready averages with one neighbour, and no worker
    waits.

    Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018 (AD-PSGD). Every worker i
    has parameters x_i in memory that the others can change. When its gradient g is ready, it draws one of its
    neighbours j on a graph and, while no other worker touches the two,

        x_i, x_j  <-  (x_i + x_j) / 2
        x_i       <-  optimizer(x_i, g)

    where g was computed from x_i before other workers, and this average, changed it. The mean of all moves by gradients
    only; the result is that mean. The neighbour is drawn from (seed, worker, batch), so a replay draws it again. A dead
    worker is still averaged with: its parameters keep what it had learnt.

    Also known as asynchronous gossip SGD. The published deadlock of two workers that choose each other cannot happen
    here: an average needs one lock, not the other worker. Not to be confused with D-PSGD (`d_psgd`), where all mix in
    step.
    """

    graph: str = "ring"

    def partner(self, worker: int, workers: int, seed: int, batch: int) -> int | None:
        """Return the neighbour that this worker averages with for this batch; None where it is the only worker."""
        neighbours = [other for other, _ in Neighbours(self.graph).weights(worker, workers)[1:]]
        return neighbours[mix(seed, worker, batch) % len(neighbours)] if neighbours else None

    def resume(self, replicas: list[Tensor], worker: int, workers: int) -> Tensor:
        """Return where a worker continues a saved run: at its own replica.

        Where the number of workers has changed, all continue from the mean, which is the result so far.
        """
        if workers == len(replicas):
            return replicas[worker]
        mean = replicas[0].clone()
        for other in replicas[1:]:
            mean.add_(other)
        return mean.div_(len(replicas))

    def average(self, mine: Tensor, theirs: Tensor) -> None:
        """Set both to their mean."""
        mine.add_(theirs).mul_(0.5)
        theirs.copy_(mine)


@dataclass(frozen=True)
class Easgd:
    """Elastic averaging: a spring between every worker and a centre.

    Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NeurIPS 2015. Every `every` local steps,
    with the parameters x_i of P workers and the centre c as they were before,

        x_i  <-  x_i - spring * (x_i - c)
        c    <-  c + P * spring * (mean(x) - c)

    The result is the centre. Asynchronously (`ElasticExchange`), one worker at a time is exchanged with the centre
    when it has made its steps, and both move by the same pull:

        pull = spring * (x_i - c);    x_i  <-  x_i - pull;    c  <-  c + pull

    The momentum form, EAMSGD, is this with a torch optimizer that has Nesterov momentum, which runs at the worker.
    The published choice is spring = 0.9 / P. Not to be confused with model averaging
    (`local_sgd`), where every worker takes the mean itself and so stops exploring.
    """

    workers: int
    every: int = 10
    spring: float | None = None  # 0.9 / workers
    mixes_first = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {"centre": parameter.detach().clone()}

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        return value

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        centre = memory["centre"]
        spring = _spring(self.spring, self.workers)
        value.sub_(value - centre, alpha=spring)
        centre.add_(mean - centre, alpha=self.workers * spring)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return memory["centre"]


@dataclass(frozen=True)
class ElasticExchange:
    workers: int
    every: int = 10
    spring: float | None = None
    parts = 0

    def remembers(self, parameter: Tensor) -> Memory:
        return {}

    def carries(self, parameter: Tensor) -> Memory:
        return {}

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        pull = (mine - centre).mul_(_spring(self.spring, self.workers))
        mine.sub_(pull)
        centre.add_(pull)


def _spring(spring: float | None, workers: int) -> float:
    return 0.9 / workers if spring is None else spring


@dataclass(frozen=True)
class Diloco:
    """DiLoCo: many local steps of the user's optimizer, then one outer step along their mean.

    Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023. From the shared
    parameters w every worker makes `every` inner steps (published: AdamW) to w_i; then, with the outer gradient d and
    Nesterov's momentum,

        d  =  mean(w - w_i)
        v  <-  momentum * v + d
        w  <-  w - rate * (d + momentum * v)

    Asynchronously (`OuterExchange`; Liu et al., "Asynchronous local-SGD training for language modeling", 2024), the
    server makes an outer step for each arrival, with that worker's d = (w_pulled - w_i) / P, and the worker continues
    from the new w. The division by P makes P arrivals move as far as one average of all.

    All workers continue from w, each with its own inner optimizer's state. With rate 1 and momentum 0 it is
    `local_sgd`. Also known as federated averaging with server momentum (FedAvgM, Hsu et al., 2019) and as BMUF (Chen
    and Huo, 2016), which differ in the momentum's form.
    """

    every: int = 50
    rate: float = 0.7
    momentum: float = 0.9
    mixes_first = False

    def remembers(self, parameter: Tensor) -> Memory:
        return {"shared": parameter.detach().clone(), "velocity": parameter.new_zeros(parameter.shape)}

    def contribution(self, value: Tensor, memory: Memory) -> Tensor:
        return memory["shared"] - value

    def apply_mean(self, value: Tensor, memory: Memory, mean: Tensor) -> None:
        shared, velocity = memory["shared"], memory["velocity"]
        velocity.mul_(self.momentum).add_(mean)
        shared.sub_(mean + self.momentum * velocity, alpha=self.rate)
        value.copy_(shared)

    def result(self, value: Tensor, memory: Memory) -> Tensor:
        return value


@dataclass(frozen=True)
class OuterExchange:
    workers: int
    every: int = 50
    rate: float = 0.7
    momentum: float = 0.9
    parts = 0

    def remembers(self, parameter: Tensor) -> Memory:
        return {"velocity": parameter.new_zeros(parameter.shape)}

    def carries(self, parameter: Tensor) -> Memory:
        return {"pulled": parameter.detach().clone()}

    def exchange(self, centre: Tensor, memory: Memory, mine: Tensor, carried: Memory) -> None:
        outer = (carried["pulled"] - mine).div_(self.workers)
        velocity = memory["velocity"].mul_(self.momentum).add_(outer)
        centre.sub_(outer + self.momentum * velocity, alpha=self.rate)
        mine.copy_(centre)
        carried["pulled"].copy_(centre)


ALPHA = 0.5  # as published


@dataclass(frozen=True)
class Streaming:
    """When replicas that step on their own are exchanged: whole and at once, or in fragments, as in Streaming DiLoCo.

    Douillard et al., "Streaming DiLoCo with overlapping communication: towards a distributed free lunch", 2025. The
    parameters are cut into F fragments. Within each period of `every` updates every fragment is exchanged once, at
    offsets that are spread evenly:

        every = 4, fragments = 2       update     0   1   2   3   4   5   6   7
                                       exchange       0       1       0       1        (after the update)

    So the exchange of number k is that of fragment k mod F, and an exchange has about 1/F of the bytes. After the last
    update every fragment is exchanged once more, and all replicas agree. Fragments are whole tensors, balanced by size;
    the paper takes whole layers. With one fragment this is DiLoCo, or local SGD, as published.

    With `overlap` (the paper's tau; `fragment_sync_delay` in torchft) an exchange that begins after update u is made
    while the next updates are computed, and its result is applied after update u + overlap, however long it has taken.
    By then a replica theta has made further steps of its own, so it continues from a mixture with the shared parameters
    w:

        theta  <-  ALPHA theta + (1 - ALPHA) w

    The exchanges after the last update do not overlap, and mix nothing.

    The exchanges of a run by the updates after which they begin and are applied.
    """

    #: Updates between two exchanges of a fragment; 0 for a single exchange at the end.
    every: int
    fragments: int = 1
    #: Updates that are made while an exchange is under way; at most as many as lie between two exchanges.
    overlap: int = 0

    def after(self, update: int, updates: int) -> int:
        """Return how many exchanges begin after this one of so many updates: all fragments' after the last."""
        return self.fragments if update + 1 == updates else self._due(update + 1) - self._due(update)

    def before(self, update: int, updates: int) -> int:
        """Return how many exchanges have begun before this update does."""
        if update and update == updates:
            return self._due(update - 1) + self.fragments
        return self._due(update)

    def overlaps(self, update: int, updates: int) -> bool:
        """Return whether exchanges that begin after this update are made while the next ones are computed."""
        return self.overlap > 0 and update + 1 != updates

    def lands(self, update: int, updates: int) -> bool:
        """Return whether the exchange that is under way is applied after this update."""
        last = update + 1 == updates
        return self.under_way(update) and (
            last or self._due(update + 1 - self.overlap) > self._due(update - self.overlap)
        )

    def under_way(self, update: int) -> bool:
        """Return whether an exchange has begun before this update, and is not applied yet."""
        return self._due(update) > self._due(update - self.overlap)

    def ahead(self, updates: range) -> range:
        """Return these updates up to the one after which the next exchange begins or is applied."""
        if not self.every:
            return updates
        first = updates[0]
        stop = self._begins(self._due(first))
        if self.under_way(first):
            stop = min(stop, self._begins(self._due(first) - 1) + self.overlap)
        return range(first, min(stop, updates.stop))

    def _begins(self, number: int) -> int:
        """Return how many updates are made before the exchange of this number."""
        return -(-(number + 1) * self.every // self.fragments)

    def _due(self, updates: int) -> int:
        return max(0, updates) * self.fragments // self.every if self.every else 0
