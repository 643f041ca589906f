"""How many findings does a budget buy, in the learned order, in plain depth-first order and at random?

    python benchmarks/checker/walk.py [--write] [--most 120] FOLDERS...

FOLDERS hold packages, as site-packages and the standard library do. Of every package the `--most` files with the first
hashes are checked that mention concurrency at all; so what the search for words passes over is no merit of the order.
A node is a statement or a handler: a node of a control-flow graph. Depth first: packages, files, functions and
statements as they come. Packages are split by the hash of their name before anything is fitted: the strength of the
prior is chosen by a fit to `rules` that is judged on `choose`; the weights are fitted to both; `last` is only measured.
`--write` writes the weights to src/paceline/concurrency/check/ranking/order.json.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression

from paceline.concurrency.check.engine import check_text, is_relevant
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.ranking.order import features, promise
from paceline.concurrency.check.run import worth_showing
from paceline.concurrency.check.syntax.source import Unreadable, parse, read

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from harness import write  # noqa: E402
from mine import split_of  # noqa: E402

SHARES = (0.05, 0.1, 0.2, 1 / 3, 0.5)
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3)
ORDERS = 20  # random ones
WEIGHTS = Path(__file__).parents[2] / "src/paceline/concurrency/check/ranking/order.json"


class File(NamedTuple):
    package: str
    path: str
    text: str
    nodes: int
    findings: int


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--most", type=int, default=120)
    options.add_argument("--write", action="store_true")
    given = options.parse_args()
    files = [file for folder in given.folders for package in packages(folder) for file in checked(package, given.most)]
    parts = {part: [f for f in files if split_of(f.package) == part] for part in ("rules", "choose", "last")}

    def area(strength: float) -> float:
        return covered(learned(parts["choose"], fitted(parts["rules"], strength)))

    strength = max(STRENGTHS, key=area)
    weights = fitted(parts["rules"] + parts["choose"], strength)
    figures = {
        "files": {part: len(some) for part, some in parts.items()},
        "lines": {part: sum(f.text.count("\n") for f in some) for part, some in parts.items()},
        "nodes": {part: sum(f.nodes for f in some) for part, some in parts.items()},
        "findings": {part: sum(f.findings for f in some) for part, some in parts.items()},
        "strength of the prior": strength,
        "packages held out (last)": compared(parts["last"], weights),
        "packages of the fit (rules and choose)": compared(parts["rules"] + parts["choose"], weights),
    }
    print(json.dumps(figures, indent=1))
    write(figures, "walk.json")
    if given.write:
        rounded = {name: round(value, 3) for name, value in sorted(weights.items())}
        WEIGHTS.write_text(json.dumps({"files": len(files) - len(parts["last"]), "weights": rounded}, indent=1) + "\n")


def packages(folder: Path) -> list[Path]:
    """The packages and modules of a folder; not those of a folder of packages inside it."""
    return [p for p in sorted(folder.iterdir()) if p.suffix == ".py" or (p.is_dir() and p.name != "site-packages")]


def checked(package: Path, most: int) -> Iterator[File]:
    """The files of a package, each with its nodes and its findings at the default level."""
    files = [package] if package.is_file() else [f for f in package.rglob("*.py") if f.is_file()]
    files.sort(key=lambda f: hashlib.sha256(str(f.relative_to(package.parent)).encode()).hexdigest())
    taken = 0
    for file in files:
        try:
            text = read(file)
            if taken == most or not is_relevant("", text):
                continue
            nodes = sum(isinstance(node, ast.stmt | ast.ExceptHandler) for node in ast.walk(parse(text)))
        except Unreadable:
            continue
        taken += 1
        path = str(file.relative_to(package.parent))
        found = worth_showing(check_text(path, text), Options())
        yield File(package.stem, path, text, nodes, len(found))


def fitted(files: list[File], strength: float) -> dict[str, float]:
    """The most probable weights under a normal prior."""
    rows = [features(file.text) for file in files]
    for row in rows:
        del row["always"]  # the intercept, which has no prior
    table = DictVectorizer()
    model = LogisticRegression(C=strength, max_iter=2_000)
    model.fit(table.fit_transform(rows), [file.findings > 0 for file in files])
    names = [str(name) for name in table.feature_names_]
    return {"always": float(model.intercept_[0]), **dict(zip(names, map(float, model.coef_[0]), strict=True))}


def learned(files: list[File], weights: dict[str, float]) -> list[File]:
    return sorted(files, key=lambda file: (-promise(file.text, weights), file.path))


def compared(files: list[File], weights: dict[str, float]) -> dict[str, object]:
    """The findings that a share of the nodes buys, and the share that all findings cost, in each order."""
    chance = random.Random(0)
    shuffled = [bought(chance.sample(files, len(files))) for _ in range(ORDERS)]
    plain, best = bought(sorted(files, key=lambda f: f.path)), bought(learned(files, weights))
    return {
        "learned": best,
        "depth first": plain,
        "random, median": {name: statistics.median(each[name] for each in shuffled) for name in plain},
        "random, range": {name: [f(each[name] for each in shuffled) for f in (min, max)] for name in plain},
    }


def bought(order: list[File]) -> dict[str, float]:
    nodes, findings = sum(f.nodes for f in order), sum(f.findings for f in order)
    spent = found = 0
    shares = dict.fromkeys(SHARES, 0)
    costs: dict[float, int] = {}
    for file in order:
        spent += file.nodes
        found += file.findings
        shares |= {share: found for share in SHARES if spent <= share * nodes}
        for part in (0.9, 1.0):
            if found >= part * findings:
                costs.setdefault(part, spent)
    return {f"findings for {share:.2f} of the nodes": shares[share] for share in SHARES} | {
        f"nodes for {part:.0%} of the findings": round(cost / nodes, 3) for part, cost in costs.items()
    }


def covered(order: list[File]) -> float:
    """The mean share of the findings over all budgets."""
    lines, findings = sum(f.text.count("\n") for f in order), sum(f.findings for f in order)
    found, area = 0, 0.0
    for file in order:
        found += file.findings
        area += found / max(1, findings) * file.text.count("\n") / lines
    return area


if __name__ == "__main__":
    main()
