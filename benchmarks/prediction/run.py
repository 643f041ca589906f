"""How far predictions are off: predicts every job that `recording.py` has measured, and judges the predictions.

    python benchmarks/prediction/run.py            the tables of README.md
    python benchmarks/prediction/run.py --plans    also the error of every plan

Predictions come from a card and a profile; the seconds that they are compared with were measured apart from both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jobs import FITTED, SETS

from paceline.errors import PacelineError
from paceline.interfaces.api.planning.choose import facts_of
from paceline.planning.planner.card import Card
from paceline.planning.planner.choosing import PAYS
from paceline.planning.planner.costs import Calibrated, Costs
from paceline.planning.planner.facts import Facts, ModelDivision
from paceline.planning.planner.methods import predict
from paceline.planning.planner.model_cost import cost_of
from paceline.planning.planner.prediction import Prediction, same_learning
from paceline.planning.planner.profiled import Profile, Profiled, learn, mean_without_outliers
from paceline.planning.planner.validating import kendall
from paceline.plans.methods.prediction import NotPredicted
from paceline.plans.plan import Plan

sys.path.insert(0, str(Path(__file__).parent.parent))
from harness import write

FOLDER = Path(__file__).parent / "recorded"
LEVELS = ("calibrated", "profiled")
#: What a profile measures besides workers that never communicate, with 2 and with 4 workers.
ANCHORS = ("ring", "downpour", "ddp", "gpipe", "tensor")
DEFAULT, DDP = "sequential:threads=2", "ddp:workers=2"


@dataclass(frozen=True)
class Row:
    """One plan of one job, predicted at one level, and measured."""

    job: str
    seen: str
    level: str
    name: str
    predicted: Prediction
    rounds: tuple[float, ...]
    updates: tuple[int, ...]
    bytes: float
    memory: int

    @property
    def measured(self) -> float:
        """The seconds of an update; the first round is short, and counts by its updates."""
        return sum(s * n for s, n in zip(self.rounds, self.updates, strict=True)) / sum(self.updates)

    @property
    def error(self) -> float:
        return self.predicted.seconds / self.measured - 1

    @property
    def covered(self) -> bool:
        return self.predicted.low <= self.measured <= self.predicted.high

    @property
    def noise(self) -> float:
        """What two rounds of the same plan differ by."""
        return abs(self.rounds[0] / self.rounds[-1] - 1)


def rows(card: Card, found: Mapping[str, Any]) -> Iterator[Row]:
    """Predict every plan of a recorded job at both levels."""
    name = found["job"]
    job = SETS[name]()
    facts, _ = facts_of(job)
    base = Calibrated(card, lambda samples: cost_of(job, samples))
    base.cost(facts.batch)
    levels: dict[str, dict[str, Costs]] = {"calibrated": {"autograd": base}, "profiled": {}}
    for way in dict.fromkeys(each["way"] for each in found["profiles"]):
        levels["profiled"][way] = profile(base, facts, found, way)
    rounds: dict[str, list[Mapping[str, Any]]] = {}
    for each in found["measured"]:
        rounds.setdefault(each["name"], []).append(each)
    for text, runs in rounds.items():
        if text.startswith("backup"):
            continue  # its seconds were counted with the gradients that it drops
        plan, way = Plan.parse(runs[0]["plan"]), runs[0]["way"]
        divided = replace(facts, division=_division(found, runs[0]["plan"]))
        for level, ways in levels.items():
            if way not in ways or len(runs) < 2 or (way == "fused" and plan.workers > 2):
                continue  # a profile measures generated code with as many workers, and this record does not have it
            try:
                predicted = predict(plan, ways[way], divided, way)
            except (PacelineError, NotPredicted):
                continue
            yield Row(
                name, "fitted" if name in FITTED else "unseen", level, text, predicted,
                tuple(run["seconds"] for run in runs), tuple(run["updates"] for run in runs),
                runs[-1]["bytes"], max(run["memory"] for run in runs),
            )  # fmt: skip


def profile(base: Calibrated, facts: Facts, found: Mapping[str, Any], way: str) -> Profiled:
    """Return the costs of a job as `choose` profiles it."""
    profiles = [_profile(each) for each in found["profiles"] if each["way"] == way and each["busy"] <= base.card.cores]
    costs = Profiled(base, profiles)
    for each in found["anchors"]:
        plan = Plan.parse(each["plan"])
        if each["way"] == way and plan.name in ANCHORS and plan.workers in (2, 4):
            divided = replace(facts, division=_division(found, each["plan"]))
            with contextlib.suppress(PacelineError, NotPredicted):
                learn(costs, plan, divided, each["seconds"], each["memory"])
    return costs


def _division(found: Mapping[str, Any], plan: str) -> ModelDivision | None:
    kept = found["divisions"].get(plan.partition(",cuts")[0])
    return ModelDivision(**kept) if kept else None


def _profile(row: Mapping[str, Any]) -> Profile:
    own = mean_without_outliers(row["compute"]) + mean_without_outliers(row["update"])
    return Profile(
        row["busy"], row["threads"], row["samples"], tuple(row["compute"]), tuple(row["update"]),
        max(0.0, row["seconds"] * row["busy"] - own), row["memory"],
    )  # fmt: skip


# --- what they come to ---


def table(found: Sequence[Row], seen: str, level: str) -> str:
    """One line: errors of these rows."""
    mine = [row for row in found if (row.seen, row.level) == (seen, level)]
    if not mine:
        return ""
    errors, noise = [row.error for row in mine], statistics.median(row.noise for row in mine)
    exact = [row for row in mine if row.bytes and not row.name.startswith("ddp")]
    same = sum(abs(row.predicted.bytes / row.bytes - 1) < 1e-9 for row in exact)
    heavy = [row for row in mine if row.memory > 1.5e6 and row.predicted.compute == "autograd"]
    within = sum(abs(row.predicted.memory / row.memory - 1) <= 0.1 for row in heavy) / max(1, len(heavy))
    ranks = [
        kendall([r.predicted.seconds for r in mine if r.job == job], [r.measured for r in mine if r.job == job])
        for job in dict.fromkeys(row.job for row in mine)
    ]
    return (
        f"| {seen} | {level} | {len(mine)} | {statistics.median(map(abs, errors)):.1%} | "
        f"{statistics.median(errors):+.1%} | {noise:.1%} | {statistics.median(ranks):.2f} | "
        f"{sum(row.covered for row in mine) / len(mine):.0%} | {same} of {len(exact)} | {within:.0%} |"
    )


@dataclass(frozen=True)
class Choices:
    """The seconds of an update by each way of choosing, in a round that none of them has seen."""

    job: str
    auto: float
    predicted: float
    oracle: float
    default: float
    ddp: float
    names: tuple[str, str, str]


def choices(found: Sequence[Row], job: str) -> Choices | None:
    """Choose by the first round and the predictions, and judge by the last round.

    auto        the plans predicted to be fastest, of which the first round decides, as `choose` does
    predicted   predictions alone
    oracle      the first round of every plan that was measured
    """
    same = {r.name: r for r in found if (r.job, r.level) == (job, "profiled") and same_learning(r.predicted.plan)}
    if DEFAULT not in same:
        return None
    by_prediction = sorted(same.values(), key=lambda row: row.predicted.seconds)
    first = _pays(by_prediction, lambda row: row.predicted.seconds)
    near = [r for r in by_prediction if r.predicted.low <= by_prediction[0].predicted.high]
    finals = [*near[:5], *(r for r in same.values() if r.predicted.plan.workers == 1)]
    auto = _pays(finals, lambda row: row.rounds[0])
    oracle = min(same.values(), key=lambda row: row.rounds[0])
    last = {name: row.rounds[-1] for name, row in same.items()}
    return Choices(
        job, last[auto.name], last[first.name], last[oracle.name], last[DEFAULT], last.get(DDP, math.nan),
        (auto.name, first.name, oracle.name),
    )  # fmt: skip


def _pays(found: Sequence[Row], seconds: Any) -> Row:
    best = min(found, key=seconds)
    alone = [r for r in found if r.predicted.plan.workers * r.predicted.plan.threads == 1]
    single = min(alone, key=seconds, default=best)
    return single if seconds(single) < PAYS * seconds(best) else best


def choice_table(found: Sequence[Row], seen: str) -> list[str]:
    jobs = dict.fromkeys(row.job for row in found if row.seen == seen)
    made = [each for job in jobs if (each := choices(found, job)) is not None]
    if not made:
        return []
    head = "| job | auto | prediction alone | oracle | PyTorch's default | DDP | auto's plan |"
    lines = [head, "|---|" + "---:|" * 5 + "---|"]
    for each in made:
        shares = [value / each.oracle for value in (each.auto, each.predicted, each.oracle, each.default, each.ddp)]
        lines.append(f"| {each.job} | " + " | ".join(f"{s:.2f}" for s in shares) + f" | `{each.names[0]}` |")
    regrets = sorted(each.auto / each.oracle - 1 for each in made)
    alone = sorted(each.predicted / each.oracle - 1 for each in made)
    names = ("auto", "predicted", "default", "ddp")
    totals = [statistics.fmean(getattr(each, name) / each.oracle for each in made) for name in names]
    lines.append("| **mean** | " + " | ".join(f"{t:.2f}" for t in (*totals[:2], 1.0, *totals[2:])) + " | |")
    lines.append(
        f"\nRegret, {seen}: auto {statistics.median(regrets):.1%} median, {regrets[-1]:.1%} worst; predictions alone "
        f"{statistics.median(alone):.1%} and {alone[-1]:.1%}."
    )
    return lines


def by_plan(found: Sequence[Row]) -> list[str]:
    """The signed error of every plan at both levels, median over jobs."""
    lines = []
    for name in dict.fromkeys(row.name for row in found):
        parts = []
        for level in LEVELS:
            mine = [row.error for row in found if (row.name, row.level) == (name, level)]
            parts.append(f"{statistics.median(mine):+.0%} ({len(mine)})" if mine else "-")
        lines.append(f"| `{name}` | {' | '.join(parts)} |")
    return lines


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--plans", action="store_true")
    given.add_argument("--set", choices=("fitted", "unseen"), default="")
    options = given.parse_args()
    warnings.simplefilter("ignore")
    card = Card.read(FOLDER / "card.json")
    wanted = [name for name in SETS if not options.set or (name in FITTED) == (options.set == "fitted")]
    files = [FOLDER / f"{name}.json" for name in wanted if (FOLDER / f"{name}.json").exists()]
    found = [row for file in files for row in rows(card, json.loads(file.read_text()))]
    sets = dict.fromkeys(row.seen for row in found)
    print("| jobs | level | plans | error | bias | noise floor | rank | 90% covers | bytes exact | memory within 10% |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    lines = [table(found, seen, level) for seen in sets for level in LEVELS]
    print("\n".join(filter(None, lines)))
    for seen in sets:
        print("\n".join(["", *choice_table(found, seen)]))
    if options.plans:
        print("\n| plan | calibrated | profiled |\n|---|---:|---:|\n" + "\n".join(by_plan(found)))
    if not options.set:
        kept = {f"{seen}, {level}": line for seen in sets for level in LEVELS if (line := table(found, seen, level))}
        chosen = [asdict(each) for row in dict.fromkeys(r.job for r in found) if (each := choices(found, row))]
        write({"lines": kept, "choices": chosen})


if __name__ == "__main__":
    main()
