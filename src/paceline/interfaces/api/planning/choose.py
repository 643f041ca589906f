"""`choose`: predicts every plan for a job and chooses one. With `plan="auto"`, `train` follows it at once."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from paceline.algorithms.codecs.catalogue import most_gathered
from paceline.algorithms.splits.derivation import Program
from paceline.errors import PacelineError, PlanError, UsageError, suggest, whole
from paceline.errors.arguments import check_arguments
from paceline.interfaces.api.fusing import can_fuse
from paceline.interfaces.api.lines import Say, silent, to_stderr
from paceline.interfaces.api.planning.calibrate import measured_card
from paceline.interfaces.api.planning.dividing import Divider, Splittable, splittable
from paceline.interfaces.api.planning.measuring import codings, with_finalists
from paceline.interfaces.api.planning.profiling import glanced, profiled
from paceline.planning.planner import cluster as clusters
from paceline.planning.planner.card import Card, default_file, usual
from paceline.planning.planner.choosing import GOALS, USABLE, Choice, Layer, fits
from paceline.planning.planner.choosing import choose as rank
from paceline.planning.planner.cluster import Cluster, NodeGroup, links_of, read_prices
from paceline.planning.planner.costs import Calibrated, Costs
from paceline.planning.planner.facts import Facts, ModelDivision, coding_of, reads
from paceline.planning.planner.methods import predict
from paceline.planning.planner.model_cost import cost_of, parameter_bytes
from paceline.planning.planner.prediction import LEARNING, Candidate, Prediction, candidates, numbers_of_workers
from paceline.planning.planner.simulating import BEST, simulated
from paceline.planning.planner.split_search import search
from paceline.plans.methods.prediction import NotPredicted
from paceline.plans.plan import Plan, check_method, make
from paceline.runtime.engines.setup import set_up
from paceline.runtime.runs.record import this_machine
from paceline.training.gradients.payload import Payload
from paceline.training.gradients.probe import probing_once
from paceline.training.jobs.job import Job, checked

LEVELS = ("calibrated", "profiled")
MOST_SPLIT = 8  # workers up to which a model is divided: each computes a chunk in the rehearsal


@dataclass
class Planner:
    """Predictions for one job on this machine."""

    job: Job
    card: Card
    facts: Facts
    updates_per_epoch: int
    #: By how gradients are computed: "autograd", and "fused" where the job can be.
    costs: dict[str, Costs]
    #: How plans divide the model, where this machine would run them; None where no plan is to be tried.
    divider: Divider | None = None
    #: Whether a way is searched for each layer.
    searches: bool = True
    #: Whether only plans that may be the fastest divide the model, which takes a while.
    glances: bool = False

    @property
    def most_split(self) -> int:
        """The most workers for which splits of each layer are searched: more than there are cores never pay."""
        return min(self.card.cores, MOST_SPLIT)

    def predict(self, candidate: Candidate, divide: bool = True) -> Prediction | None:
        """Predict a candidate; None where the planner has no model of it, or has none unless the model is divided."""
        costs = self.costs.get(candidate.compute)
        if costs is None:
            return None
        try:
            division = self._divided(candidate.plan) if divide else None
            return predict(candidate.plan, costs, replace(self.facts, division=division), candidate.compute)
        except (NotPredicted, PacelineError):
            return None

    def layers(self) -> tuple[Layer, ...]:
        """The modules of the model with a whole batch."""
        seconds = self.costs["autograd"].layers(self.facts.batch, 1, 1)
        counted = self.costs["autograd"].cost(self.facts.batch).layers
        return tuple(
            Layer(name, row["flops"], row["bytes"], seconds[name].forward + seconds[name].backward)
            for name, row in counted.items()
            if name in seconds
        )

    def explained(self, choice: Choice) -> Choice:
        """Return the choice with the model's layers and the machine's roofs."""
        compute = self.card.fit(1, 1)[0].compute
        flop, byte = compute.get("matmul.large", 0.0), compute.get("far", 0.0) or compute.get("near", 0.0)
        return replace(choice, layers=self.layers(), roofs=(1e-9 / flop, 1e-9 / byte) if flop and byte else None)

    def _divided(self, plan: Plan) -> ModelDivision | None:
        if self.divider is None or plan.workers > MOST_SPLIT:
            return None
        return self.divider.divide(plan)

    def predictions(self, workers: Sequence[int], learning: str) -> list[Prediction]:
        """Predict all candidates; with codecs where their costs are known."""
        fused, codecs = "fused" in self.costs, tuple(self.facts.codecs)
        tried = list(candidates(workers, self.card.cores, learning, fused, codecs=codecs))
        predicted = [self.predict(each, divide=not self.glances) for each in tried]
        if self.glances:
            best = min(p.high for p in predicted if p is not None and not p.plan.traits.divided)
            predicted = [self._divided_if_it_may_win(*pair, best) for pair in zip(tried, predicted, strict=True)]
        else:
            best = math.inf
        if self.divider is not None and self.searches:
            counts = [count for count in workers if count <= self.most_split and self._ideal(count) <= best]
            predicted += [self.split(self.divider.job, count) for count in counts]
        return [each for each in predicted if each is not None]

    def _divided_if_it_may_win(self, candidate: Candidate, known: Prediction | None, best: float) -> Prediction | None:
        """Predict a plan that divides the model where it may be faster than `best`, as the model is divided by it."""
        plan = candidate.plan
        if not plan.traits.divided or (known.low if known else self._ideal(plan.workers)) > best:
            return known
        return self.predict(candidate)

    def _ideal(self, workers: int) -> float:
        """The seconds of an update that workers compute in equal parts, without an exchange."""
        return self.costs["autograd"].compute(self.facts.batch, workers, 1).seconds / workers

    def split(self, job: Job, workers: int) -> Prediction | None:
        """Search a way for each layer; None where every layer is best whole, or the model cannot be split."""
        best: Prediction | None = None
        for data in (count for count in range(1, workers) if workers % count == 0):
            try:
                model = splittable(job, workers, data)
                table = search(model.graph, partial(self._judged, model, workers)).text
                plan = make("per_layer", workers=workers, data=data, ways=table)
                prediction = self.predict(Candidate(plan)) if table else None
            except PacelineError:
                continue
            if prediction is not None and (best is None or prediction.seconds < best.seconds):
                best = prediction
        return best

    def _judged(self, model: Splittable, workers: int, program: Program) -> float:
        """Return the predicted seconds of an update by a program of this model."""
        plan = make("per_layer", workers=workers, data=model.parts.replicas, ways="*:whole")
        facts = replace(self.facts, division=model.division(program))
        return predict(plan, self.costs["autograd"], facts).seconds


def open_card(card: str | Path | Card | None, say: Say = silent, rough: bool = False) -> Card:
    """Return a card, this machine's by default; a machine without one is calibrated first, in half a minute.

    `rough`: instead, it gets the figures of a usual machine for this time.
    """
    if isinstance(card, Card):
        return card
    if card is not None:
        return Card.read(Path(card))
    try:
        machine_card, machine = Card.kept(), this_machine()
        if (machine_card.processor, machine_card.cores) == (machine.processor, len(os.sched_getaffinity(0))):
            return machine_card
        say(f"the card {default_file()} is of another machine ({machine_card.processor}, {machine_card.cores} cores)")
    except FileNotFoundError:
        pass
    except OSError as error:
        say(f"the card {default_file()} is not used: {error.strerror}")
    if rough:
        say("this machine has no card (paceline calibrate makes one): plans are looked for by figures of a usual one")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return usual(this_machine().processor, len(os.sched_getaffinity(0)), memory)
    say("this machine has no card yet: calibrating it, once, for half a minute ...")
    measured = measured_card(say=say)
    try:
        measured.keep()
    except OSError as error:
        say(f"the card cannot be kept in {default_file().parent}: {error.strerror}; set XDG_CACHE_HOME to another")
    return measured


def facts_of(job: Job, coded: bool = False) -> tuple[Facts, int]:
    """Return what the planner knows of a job, and its updates in an epoch; with `coded` the costs of codecs, too."""
    _refuse_giants(checked(job))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setup = set_up(job.with_(compute="autograd"), make("sequential"), "virtual", 1)
    served = setup.layout.bytes
    payload = Payload.length(setup.layout) * setup.layout.bytes_per_number
    batch = min(job.batch_size * job.accumulate_grad_batches, len(setup.source))
    codecs = codings(setup.layout) if coded else {}
    return Facts(batch, payload, served, codecs), -(
        -len(setup.source) // (job.batch_size * job.accumulate_grad_batches)
    )


def _refuse_giants(job: Job) -> None:
    """Raise UsageError for a model that this machine cannot hold with its gradient: no plan can be counted here."""
    memory, size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), parameter_bytes(job)
    if 2 * size > USABLE * memory:
        raise UsageError(
            f"the model has {size / 2**30:,.1f} GiB of parameters and as much of gradients, and this machine has "
            f"{memory / 2**30:,.1f} GiB: no plan fits. Give a model of at most {USABLE * memory / 2**31:,.1f} GiB of "
            "parameters, or plan on a machine with more memory"
        )


def planner_for(
    job: Job,
    card: Card,
    level: str = "profiled",
    fused: bool = True,
    say: Say = silent,
    coded: bool = False,
    here: bool = True,
    workers: Sequence[int] = (),
    glance: bool = False,
) -> Planner:
    """Make predictions for a job possible: count its operations, and profile it if the level asks for that.

    `here` is whether this machine will run the plans: then stages are weighed, and splits of each layer searched.
    `workers` are the numbers of workers that will be predicted; a profile measures plans of the least and of the most.
    `glance` says that the plans that may be fastest will be measured, for which a short profile is enough.
    """
    facts, updates = facts_of(job, coded)
    base = Calibrated(card, lambda samples: cost_of(job, samples, here and level == "profiled"))
    base.cost(min(facts.batch, job.batch_size))
    costs: dict[str, Costs] = {"autograd": base}
    divider = Divider(job, level == "profiled" and here)
    if level == "profiled":
        for compute in ("autograd", "fused") if fused and can_fuse(job) else ("autograd",):
            one = job.with_(compute=compute)
            costs[compute] = (
                glanced(one, base, facts, say) if glance else profiled(one, base, facts, divider, workers, say)
            )
    return Planner(job, card, facts, updates, costs, divider, here, glance)


# --- the choice ---


def choose(
    job: Job,
    cluster: str | Path | None = None,
    goal: str = "time",
    *,
    level: str = "profiled",
    learning: str = "same",
    workers: int | None = None,
    card: str | Path | Card | None = None,
    prices: str | Path | None = None,
    link: str | None = None,
    say: Say = to_stderr,
    command: str = "",
) -> Choice:
    """Predict every plan for a job, and choose one.

    Args:
        job: The job.
        goal: What is minimized: `"time"`, `"cost"` or `"memory"`.
        level: `"profiled"` measures a few steps of this model; `"calibrated"` uses the machine's card alone.
        learning: `"same"`: only plans that learn as one process does; `"any"`: also asynchronous plans and plans that
            average replicas.
        workers: The largest number of workers to consider. Default: the number of cores.
        card: A card that `paceline calibrate` wrote. Default: this machine's.
        cluster: A cluster.toml that describes other machines, with one worker on each. Predictions then use the cards
            of those machines alone.
        prices: A CSV file with prices of the cluster's machines.
        link: The network between as many machines like this one as there are workers (default 4), as in
            `"100Mbit,1ms"`. With `learning="any"` codecs are considered, too.
        say: A function that is called with lines about the progress. Default: prints to stderr.
    """
    arguments = locals()
    if prices is not None and cluster is None:
        raise UsageError("prices= needs cluster=, a file that says which machines are to be paid")
    if link is not None and cluster is not None:
        raise UsageError("give either cluster=, whose file has the network in it, or link=")
    for name, value, allowed in (("goal", goal, GOALS), ("level", level, LEVELS), ("learning", learning, LEARNING)):
        if value not in allowed:
            raise UsageError(f"{name}={value!r}; {suggest(value, allowed)}")
    workers = whole("workers", workers, 1)
    check_arguments(choose, arguments)
    links = links_of(link) if link is not None else None
    if links is not None or cluster is not None:
        target_cluster = (
            Cluster((NodeGroup(open_card(card, say), workers or 4),), links) if links else cluster_of(cluster, prices)
        )
        choice = _on_cluster(job, target_cluster, goal, learning, workers)
        found_there = with_command(choice, command)
        several = choice.best.plan.workers > 1
        return (
            replace(found_there, command=found_there.command + " --engine cluster")
            if several and command
            else found_there
        )
    checked(job)
    return with_command(_here(job, card, goal, level, learning, workers, say), command)


def _here(
    job: Job, card: str | Path | Card | None, goal: str, level: str, learning: str, workers: int | None, say: Say
) -> Choice:
    """Choose for this machine: predictions find the plans that may be best, and these are measured."""
    races = level == "profiled" and goal != "memory"
    machine_card = open_card(card, say, rough=races)
    counts = numbers_of_workers(machine_card.cores, workers) if workers != 1 else []
    with probing_once():
        fused = job.compute != "autograd"
        planner = planner_for(job, machine_card, level, fused, say=say, workers=counts, glance=races)
        predictions = planner.predictions(counts, learning)
        if job.compute == "fused" and "fused" in planner.costs:
            predictions = [each for each in predictions if each.compute == "fused"]
        if races:
            say("measuring the plans that may be fastest ...")
            predictions = with_finalists(
                job, [fits(each, machine_card.memory, machine_card.memory) for each in predictions], say
            )
    return planner.explained(rank(predictions, goal, machine_card.memory, planner.updates_per_epoch))


def cluster_of(cluster: str | Path | Cluster | None, prices: str | Path | None = None) -> Cluster:
    """Return a cluster, from its file where that is given."""
    if isinstance(cluster, Cluster):
        return cluster
    assert cluster is not None
    return clusters.read(Path(cluster), read_prices(Path(prices)) if prices is not None else None)


def _on_cluster(job: Job, cluster: Cluster, goal: str, learning: str, workers: int | None) -> Choice:
    """Choose for other machines: closed forms rank, and the simulator judges the best of them."""
    planner = planner_for(job, cluster.card(), "calibrated", coded=learning == "any", here=False)
    counts = [n for n in numbers_of_workers(cluster.machines, workers) if n <= cluster.machines]
    if cluster.machines == 1 or workers == 1:
        counts = []
    each = min(node.card.memory for node in cluster.nodes)
    memory, updates = planner.card.memory, planner.updates_per_epoch
    predictions = [_on_nodes(one, planner.facts) for one in planner.predictions(counts, learning)]
    first = rank(predictions, "time", memory, updates, each_memory=each)
    shortlist = [p for place, p in enumerate(first.ranking) if place < BEST or p.plan.workers == 1]
    best = [simulated(one, planner.costs["autograd"], planner.facts, cluster) for one in shortlist]
    priced = cluster.price(1) is not None
    price = (lambda p: cluster.price(p.plan.workers) or 0.0) if priced else None
    if goal == "cost" and not priced:
        raise UsageError("goal cost needs a price= or sku= of every kind of node in the cluster file")
    return planner.explained(rank([*best, *first.ruled_out], goal, memory, updates, price, each))


def _on_nodes(prediction: Prediction, facts: Facts) -> Prediction:
    """Rule out what several machines do not run, with what it would take there, and codecs that cannot pay."""
    sends = reads(prediction.plan)
    if sends > 1 and sends > (most := most_gathered(coding_of(prediction.plan, facts).bytes, facts.payload)):
        return replace(
            prediction, ruled_out=f"gathered messages are fewer bytes than a dense ring only up to {most} workers"
        )
    try:
        if prediction.plan.workers > 1:
            check_method(prediction.plan)
    except PlanError as error:
        why = str(error).partition(": ")[2].partition(";")[0]
        return replace(prediction, ruled_out=why)
    return prediction


def with_command(choice: Choice, command: str) -> Choice:
    """Return the choice with the command that follows it."""
    if not choice.ranking:
        raise UsageError("no plan fits: " + "; ".join(f"{p.name}: {p.ruled_out}" for p in choice.ruled_out[:3]))
    best = choice.best
    either = any(each.compute == "fused" for each in choice.ranking)
    if command:
        text = f"{command} --plan {best.plan}{f' --compute {best.compute}' if either else ''}"
    else:
        text = f'paceline.train(job, "{best.plan}"{f", compute={best.compute!r}" if either else ""})'
    return replace(choice, command=text)
