"""`compare(link=...)`: plans side by side on machines like this one, connected by a network that one need not have.

    measured here                            simulated
    ─────────────                            ─────────
    seconds of a gradient, of an update      when workers compute, exchange and wait: the virtual engine's clock
    seconds to write and to read messages    bytes on a link of this rate and delay, in the order they are sent
    the gradients themselves                 ─

Every plan trains the whole job with its real arithmetic, so that accuracies are those of the plans; only time is not
that of this machine. What sockets cost a processor is left out. Gradients are measured in interleaved rounds, and a
part of the training is simulated again with what each round measured: so a speed-up is the median of the rounds' own,
over the best single process of the same round, and its interval shows how far the rounds disagree.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.algorithms.codecs.catalogue import most_gathered
from paceline.errors import PlanError
from paceline.interfaces.api.comparing.progress import Course
from paceline.interfaces.api.comparing.result import Case, step, verdict
from paceline.interfaces.api.comparing.timing import Ratio, TimingRounds, thread_counts, train_by_all
from paceline.interfaces.api.planning.measuring import Measured, coding, measure_for
from paceline.interfaces.api.train import train
from paceline.planning.planner.cluster import COPIES, links_of
from paceline.planning.planner.facts import reads
from paceline.plans.methods.prediction import Coding
from paceline.plans.plan import Plan, check_method, make
from paceline.runtime.engines.setup import set_up
from paceline.runtime.engines.virtual import World, simulate_totals
from paceline.runtime.runs.comparison import CodecRow, ComparisonRecord, Row, Timing
from paceline.runtime.runs.run import Run
from paceline.runtime.runs.verdict import common_level, seconds_to_hold, steady, wilson
from paceline.training.gradients.payload import Payload
from paceline.training.jobs.job import Job

LINK_PLANS = ("sequential", "ring", "ring:codec=half", "downpour", "downpour:codec=topk:0.01,pull=topk:0.01", "diloco")
ROUNDS = 9  # of measuring, interleaved: from so many on, intervals leave out a round at each end
SECONDS = 0.2  # of a round, for each size of a gradient
UPDATES = 200  # that are simulated with what each round measured
ACCURACY = "test_accuracy"


@dataclass(frozen=True)
class Piece:
    """What one worker computes at once."""

    samples: int
    threads: int


@dataclass
class Measurements:
    """What this machine takes for the pieces of all plans, and for their codecs."""

    job: Job
    parameter_bytes: int
    pieces: dict[Piece, list[Measured]] = field(default_factory=dict)
    codings: dict[str, Coding] = field(default_factory=dict)

    def measure(self, pieces: Sequence[Piece], course: Course) -> None:
        """Measure every piece by one process alone, in interleaved rounds."""
        for number in range(ROUNDS):
            text = f"measuring gradients on this machine, round {number + 1} of {ROUNDS}"
            for piece in pieces[:: -1 if number % 2 else 1]:
                course.begin(text, course.cost.start + SECONDS)
                before = self.pieces.setdefault(piece, [])
                job = self.job.with_(batch_size=piece.samples, accumulate_grad_batches=1)
                guess = before[0].seconds if before else 0.01
                before.append(measure_for(job, make("sequential", threads=piece.threads), SECONDS, guess, bool(before)))

    @property
    def rounds(self) -> list[Measurements]:
        """What each round measured."""
        return [
            replace(self, pieces={piece: [runs[number]] for piece, runs in self.pieces.items()})
            for number in range(ROUNDS)
        ]

    @property
    def core_wait(self) -> float:
        """The median share of its time for which the process waited for a core."""
        cores = len(os.sched_getaffinity(0))
        shares = [run.core_wait for piece, runs in self.pieces.items() if piece.threads <= cores for run in runs]
        return statistics.median(shares or [0.0])

    def compute(self, piece: Piece) -> float:
        """Return the seconds of a gradient, with what lies between two of them."""
        return statistics.median(statistics.median(run.compute) + run.between for run in self.pieces[piece])

    def update(self, piece: Piece) -> float:
        """Return the seconds of an update by the optimizer."""
        return statistics.median(statistics.median(run.update) for run in self.pieces[piece])

    def speed(self, piece: Piece) -> float:
        """Return the samples per second of one process that never communicates."""
        return piece.samples / (self.compute(piece) + self.update(piece))

    def world(self, plan: Plan, link: str) -> World:
        """Return the world in which a plan is simulated."""
        piece, links = piece_of(self.job, plan), links_of(link)
        coded = self.codings.get(str(plan.options.get("codec")), Coding(0.0, 0.0, 0.0))
        back = self.codings.get(str(plan.options.get("pull")), Coding(0.0, 0.0, 0.0))
        return World(
            compute=(self.compute(piece) + coded.encode + back.decode) / piece.samples,
            jitter=0.0,
            # A server also reads what it answers, so that it knows what the worker has.
            update=self.update(piece) / plan.shards + coded.decode * reads(plan) + back.encode + back.decode,
            latency=links.latency,
            bandwidth=links.bandwidth,
            seed=self.job.seed,
            copies=COPIES,
        )


def piece_of(job: Job, plan: Plan) -> Piece:
    """Return what one worker of a plan computes at once."""
    parts = plan.parts if plan.workers > 1 else 1
    return Piece(math.ceil(job.batch_size * job.accumulate_grad_batches / parts), plan.threads)


def check_plans(plans: Sequence[Plan], link: str) -> None:
    """Raise UsageError for what is no link, and PlanError for a plan that several machines do not run."""
    links_of(link)
    for plan in plans:
        if plan.workers > 1:
            check_method(plan)
        elif plan.name != "sequential":
            raise PlanError(f"plan {plan}: with one worker nothing travels over a link; give it more, or sequential")


def simulate_plans(
    job: Job, plans: Sequence[Plan], link: str, folder: Path | None, course: Course
) -> tuple[ComparisonRecord, list[Run]]:
    """Measure what this machine takes, then train by every plan on the clock of the link."""
    singles = [Piece(job.batch_size * job.accumulate_grad_batches, n) for n in thread_counts()]
    layout = set_up(job.untested(), make("sequential"), "virtual", 1).layout
    measured = Measurements(job, layout.bytes)
    pieces = list(dict.fromkeys([*singles, *(piece_of(job, plan) for plan in plans)]))
    course.announce(len(plans), len(pieces), TimingRounds(ROUNDS, SECONDS))
    measured.measure(pieces, course)
    dense = Payload.length(layout) * layout.bytes_per_number
    for name in dict.fromkeys(name for plan in plans for name in _codecs(plan)):
        measured.codings[name] = coding(name, layout)

    def by(plan: Plan) -> Run:
        course.begin(f"training {job.name} by {plan} on a simulated network of {link}", course.cost.training)
        return train(job, plan, engine="virtual", folder=folder, world=measured.world(plan, link))

    done = train_by_all(plans, by, folder)
    best = max(singles, key=measured.speed)
    common = common_level([run.record.history for run in done.runs], ACCURACY)
    codecs = tuple(codec_row(name, plans, measured.codings, dense) for name in measured.codings)
    record = ComparisonRecord(
        job=job.name,
        best_single=_threads(best),
        best_single_samples_per_second=measured.speed(best),
        rounds=ROUNDS,
        plans=tuple(
            _row(measured, plan, run, best, common, link) for plan, run in zip(done.plans, done.runs, strict=True)
        ),
        notes=tuple(cannot_pay(plans, codecs)),
        singles=tuple(
            Timing(_threads(single), tuple(each.speed(single) for each in measured.rounds)) for single in singles
        ),
        link=link,
        codecs=codecs,
        dense_bytes=dense,
        failed=tuple(done.failed),
        core_wait=measured.core_wait,
        interrupted=done.interrupted,
    )
    return record, done.runs


def speeds_by_round(measured: Measurements, plan: Plan, run: Run, link: str) -> list[float]:
    """Return the samples per second that a plan reaches with what each round measured."""
    steady_state = steady(run.trace)
    summary = run.record.summary
    assert summary is not None
    speed = steady_state.samples_per_second if steady_state else summary.samples_per_second
    if plan.workers == 1:
        piece = piece_of(measured.job, plan)
        return [each.speed(piece) for each in measured.rounds]
    usual = _seconds(measured, plan, link)
    return [speed * usual / _seconds(each, plan, link) for each in measured.rounds]


def _seconds(measured: Measurements, plan: Plan, link: str) -> float:
    """Return the seconds of some updates of a plan, simulated without their arithmetic."""
    job = measured.job
    batch = job.batch_size * job.accumulate_grad_batches
    count = UPDATES if plan.traits.synchronous else UPDATES * plan.workers
    return simulate_totals(
        plan, plan.agenda(batch * count, batch), measured.world(plan, link), measured.parameter_bytes
    ).seconds


def codec_row(name: str, plans: Sequence[Plan], codings: dict[str, Coding], dense: int) -> CodecRow:
    """Return what a codec does to the gradient."""
    codec_cost = codings[name]
    gathered = any(plan.options.get("codec") == name and reads(plan) > 1 for plan in plans)
    most = most_gathered(codec_cost.bytes, dense) if gathered else None
    return CodecRow(name, codec_cost.bytes, 1e6 * codec_cost.encode, 1e6 * codec_cost.decode, most)


def _codecs(plan: Plan) -> list[str]:
    """Return the codecs of a plan's gradients and answers."""
    used = (("codec", plan.codec), ("pull", plan.pull))
    return [str(plan.options[option]) for option, codec in used if codec is not None]


def cannot_pay(plans: Sequence[Plan], codecs: Sequence[CodecRow]) -> list[str]:
    """Say of which plans the codec sends no less than a ring without one."""
    most = {row.codec: row.most_workers for row in codecs}
    remarks = []
    for plan in plans:
        limit = most.get(str(plan.options.get("codec")))
        if limit is not None and reads(plan) > limit:
            remarks.append(
                f"{plan} cannot pay: gathered messages are fewer bytes than a ring of the dense gradient only "
                f"up to {limit} worker{'s' * (limit > 1)}"
            )
    return remarks


def _threads(piece: Piece) -> str:
    return f"{piece.threads} thread{'s' * (piece.threads > 1)}"


def _row(measured: Measurements, plan: Plan, run: Run, best: Piece, common: float | None, link: str) -> Row:
    summary, job, piece = run.record.summary, measured.job, piece_of(measured.job, plan)
    assert summary is not None
    speeds, several = speeds_by_round(measured, plan, run, link), plan.workers > 1
    speed = statistics.median(speeds)
    speedup = Ratio.of(speeds, [each.speed(best) for each in measured.rounds])
    share = Ratio.of(speeds, [plan.workers * each.speed(piece) for each in measured.rounds]) if several else None
    mine = step(run.trace, plan.workers)
    accuracy, tested = summary.metrics.get(ACCURACY), run.record.job.test_samples
    samples = job.batch_size * plan.workers // plan.parts
    case = Case(
        plan.name,
        plan.workers,
        speed,
        plan.workers * measured.speed(piece),
        measured.speed(best),
        _threads(best),
        samples,
        job.batch_size,
        mine,
    )
    return Row(
        plan=str(plan),
        workers=plan.workers,
        samples_per_second=speed,
        spread=(min(speeds), max(speeds)),
        speedup=speedup.value,
        efficiency=speedup.value / plan.workers,
        ceiling_share=share.value if share else None,
        test_accuracy=accuracy,
        test_loss=summary.metrics.get("test_loss"),
        seconds_to_common_accuracy=None if common is None else seconds_to_hold(run.record.history, ACCURACY, common),
        staleness=summary.staleness.mean,
        bytes_per_update=None if summary.bytes_sent is None else summary.bytes_sent / max(1, summary.updates),
        wait_fraction=summary.wait_fraction,
        step=mine,
        verdict=verdict(case) if several else None,
        rounds=tuple(speeds),
        speedup_interval=tuple(speedup.interval),
        ceiling_share_interval=tuple(share.interval) if share else None,
        test_accuracy_interval=None if accuracy is None else tuple(wilson(accuracy, tested)),
        metrics=summary.metrics,
    )
