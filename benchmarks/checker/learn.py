"""Is a learned order better than the plain one? And does learning help to spend a budget of walking?

    python benchmarks/checker/learn.py CASES.tsv FOLDER [PROJECTS...]

Labels: of the cases (see run.py), a finding near the bug is true and one that is left in the fixed file is false; and
of PROJECTS, folders with a project each, whose code is taken to be right: what is found in it is false, and what a
mutant of it adds is true (a `finally` taken away, an RLock made a Lock, a collective put under `if rank == 0`, a
`while` around a wait made an `if`, a `with lock` taken away). No file name and no history is a feature. Every project
is judged by a model that has not seen it; intervals are bootstrapped over projects.
"""

from __future__ import annotations

import argparse
import ast
import csv
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline

from paceline.concurrency.check.engine import check_text, is_relevant
from paceline.concurrency.check.ranking import features
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.source import Unreadable, parse, read
from paceline.concurrency.check.values.module import Module

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from harness import write  # noqa: E402
from run import changed, families, is_near, labelled  # noqa: E402

LARGEST = 2_000  # lines of a file that is mutated
PER_PROJECT = 40  # mutants kept of a project
SAMPLES = 400
WAYS = ("plain", "rule counts", "logistic")


class Example(NamedTuple):
    project: str
    features: dict[str, float]
    plain: float
    true: bool
    rule: str
    real: bool  # of a case; else of a mutant, or of code taken to be right


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("table", type=Path)
    options.add_argument("folder", type=Path)
    options.add_argument("projects", type=Path, nargs="*")
    given = options.parse_args()
    examples = list(from_cases(given.table, given.folder))
    real = len(examples)
    mutants: list[tuple[str, str, str]] = []
    for project in given.projects:
        examples += from_project(project, mutants)
    print(f"{real} labels of cases, {len(examples) - real} of mutants and code taken to be right")
    if given.projects:
        figures = {"ranker": ranker(examples), "walk under a budget": budget(mutants)}
        write(figures, "learn-mutants.json")
    else:
        write({"ranker": ranker(examples)}, "learn.json")


# -- labels


def from_cases(table: Path, folder: Path) -> Iterator[Example]:
    with table.open() as file:
        cases = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    for case in cases:
        buggy, fixed = (read(folder / case["id"] / f"{name}.py") for name in ("buggy", "fixed"))
        wanted = labelled(case["lines"]) | changed(buggy, fixed)
        after = check_text("x.py", fixed)
        left = {(f.rule, f.function, f.about) for f in after}
        for found in check_text("x.py", buggy):
            near = found.rule.startswith(families(case["kind"])) and is_near(found, wanted)
            if near and (found.rule, found.function, found.about) not in left:
                yield example(case["repository"], found, True, True)
        for found in after:
            yield example(case["repository"], found, False, True)


def from_project(project: Path, mutants: list[tuple[str, str, str]]) -> Iterator[Example]:
    chance = random.Random(project.name)
    files = [f for f in sorted(project.rglob("*.py")) if "test" not in str(f.relative_to(project)).lower()]
    chance.shuffle(files)
    made = 0
    for file in files:
        text = read(file)
        if made >= PER_PROJECT or not is_relevant("", text) or text.count("\n") > LARGEST:
            continue
        try:
            tree = parse(text)
        except Unreadable:
            continue
        before = check_text("x.py", ast.unparse(tree))
        known = {(f.rule, f.function, f.about) for f in before}
        for found in before:
            yield example(project.name, found, False, False)
        for kind, mutant in mutated(tree):
            new = [f for f in check_text("x.py", mutant) if (f.rule, f.function, f.about) not in known]
            if new and made < PER_PROJECT:
                made += 1
                mutants.append((project.name, mutant, new[0].rule))
                yield example(project.name, new[0], True, False)
            del kind


def mutated(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Programs with one thing made wrong."""
    for node in ast.walk(tree):
        for name, body in ast.iter_fields(node):
            if name not in ("body", "orelse") or not isinstance(body, list):
                continue
            for index, statement in enumerate(body):
                wrong = _wrong(statement)
                if wrong is not None:
                    kind, instead = wrong
                    body[index : index + 1] = instead
                    yield kind, ast.unparse(ast.fix_missing_locations(tree))
                    body[index : index + len(instead)] = [statement]


def _wrong(node: ast.stmt) -> tuple[str, list[ast.stmt]] | None:
    said = ast.unparse(node) if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else ""
    if isinstance(node, ast.Try) and any(".release()" in ast.unparse(s) for s in node.finalbody) and not node.handlers:
        return "finally taken away", [*node.body, *node.finalbody]
    if isinstance(node, ast.Assign) and said.endswith("threading.RLock()"):
        return "RLock made a Lock", ast.parse(said.replace("RLock()", "Lock()")).body
    if (
        isinstance(node, ast.While)
        and ".wait(" in said
        and not isinstance(node.test, ast.Constant)
        and len(node.body) == 1
    ):
        return "while made an if", [ast.If(node.test, node.body, [])]
    if isinstance(node, ast.With) and "lock" in ast.unparse(node.items[0].context_expr).lower():
        return "with lock taken away", node.body
    collective = any(f".{word}(" in said for word in ("barrier", "all_reduce", "broadcast", "all_gather", "allreduce"))
    if isinstance(node, ast.Expr) and collective and "group" not in said:
        test = ast.parse("torch.distributed.get_rank() == 0", mode="eval").body
        return "collective put under a rank", [ast.If(test, [node], [])]
    return None


def example(project: str, found: Finding, true: bool, real: bool) -> Example:
    return Example(project.replace("+", "/"), features(found), found.confidence, true, found.rule, real)


# -- the ranker


def ranker(examples: list[Example]) -> dict[str, object]:
    """Each project ranked by a model of the others; by rule counts of the others; and as it is."""
    by_project: dict[str, list[Example]] = defaultdict(list)
    for one in examples:
        by_project[one.project].append(one)
    scores: dict[str, dict[str, list[float]]] = {}
    for project, mine in by_project.items():
        others = [e for e in examples if e.project != project]
        model = make_pipeline(DictVectorizer(), LogisticRegression(C=1.0, class_weight="balanced", max_iter=2_000))
        model.fit([e.features for e in others], [e.true for e in others])
        seen: dict[str, list[bool]] = defaultdict(list)
        for e in others:
            seen[e.rule].append(e.true)
        scores[project] = {
            "true": [float(e.true) for e in mine],
            "real": [float(e.real) for e in mine],
            "plain": [e.plain for e in mine],
            "rule counts": [(4 * e.plain + sum(seen[e.rule])) / (4 + len(seen[e.rule])) for e in mine],
            "logistic": list(model.decision_function([e.features for e in mine])),
        }
    return {
        "labels": len(examples),
        "labels of cases": sum(e.real for e in examples),
        "projects": len(scores),
        "judged on all labels": judged(scores, False),
        "judged on the labels of cases alone": judged(scores, True),
    }


def judged(scores: dict[str, dict[str, list[float]]], real: bool) -> dict[str, object]:
    """The chance that a true finding comes before a false one, over the projects' findings taken together."""
    rows = {name: [i for i in range(len(s["true"])) if s["real"][i] or not real] for name, s in scores.items()}
    names = sorted(name for name, mine in rows.items() if mine)
    chance = random.Random(0)
    draws = [[chance.choice(names) for _ in names] for _ in range(SAMPLES)]

    def auc(some: list[str], way: str) -> float:
        true = [scores[n]["true"][i] for n in some for i in rows[n]]
        return (
            float(roc_auc_score(true, [scores[n][way][i] for n in some for i in rows[n]]))
            if len(set(true)) == 2
            else 0.5
        )

    result: dict[str, object] = {}
    for way in WAYS:
        lifts = sorted(auc(draw, way) - auc(draw, "plain") for draw in draws)
        result[way] = {
            "auc": round(auc(names, way), 3),
            "lift_over_plain_95%": [round(lifts[int(q * len(lifts))], 3) for q in (0.025, 0.975)],
        }
    print("cases alone" if real else "all", result)
    return result


# -- the walk under a budget


def budget(mutants: list[tuple[str, str, str]]) -> dict[str, object]:
    """Which rule to run next on a file, when only a share of all the work may be done.

    The reward is a mutant's own finding, the cost the seconds of a rule. `table` runs them as they stand, `counts` by
    reward per second in other projects (supervised), `bandit` by Thompson sampling of reward per second, learning as it
    goes (reinforcement).
    """
    random.Random(0).shuffle(mutants)
    work = [(project, costs(text), wanted) for project, text, wanted in mutants]
    total = sum(sum(c.values()) for _, c, _ in work)
    result: dict[str, object] = {"mutants": len(work)}
    for share in (0.1, 0.25, 0.5):
        result[f"share of bugs found with {share:.0%} of the work"] = {
            way: round(spend(work, way, share * total / max(1, len(work))), 3) for way in ("table", "counts", "bandit")
        }
    print(result)
    return result


def costs(text: str) -> dict[str, float]:
    facts = Facts(Module(parse(text)))
    found = {}
    for rule in RULES.values():
        began = time.perf_counter()
        if not rule.needs or any(word in text for word in rule.needs):
            list(rule.find(facts))
        found[rule.code] = time.perf_counter() - began
    return found


def spend(work: list[tuple[str, dict[str, float], str]], way: str, each: float) -> float:
    """The share of bugs found when every file gets as many seconds as another."""
    chance = random.Random(1)
    won: dict[str, float] = defaultdict(float)
    tried: dict[str, float] = defaultdict(float)
    spent: dict[str, float] = defaultdict(lambda: 1e-5)
    hits = 0
    for project, cost, wanted in work:
        if way == "table":
            order = list(RULES)
        elif way == "counts":
            others = [(c, w) for p, c, w in work if p != project]
            value = {
                code: sum(w == code for _, w in others) / (1e-5 + sum(c[code] for c, _ in others)) for code in RULES
            }
            order = sorted(RULES, key=lambda code: -value[code])
        else:
            draw = {
                c: chance.betavariate(1 + won[c], 1 + tried[c] - won[c]) / (spent[c] / max(1.0, tried[c]))
                for c in RULES
            }
            order = sorted(RULES, key=lambda code: -draw[code])
        left = each
        for code in order:
            if cost[code] > left:
                continue
            left -= cost[code]
            tried[code] += 1
            spent[code] += cost[code]
            if code == wanted:
                won[code] += 1
                hits += 1
    return hits / max(1, len(work))


if __name__ == "__main__":
    main()
