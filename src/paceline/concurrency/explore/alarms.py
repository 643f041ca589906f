"""From alarm to proof: the findings of `paceline check` are looked for by running the project's own code.

What is run is a *driver*: the file of a finding as a script, a script that imports it, or a test without fixtures whose
file mentions it. A finding is confirmed by a failure at one of its lines, or, a race, by a run in which its story
comes true.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.options import choose_files
from paceline.concurrency.check.reporting.findings import Finding, Proof
from paceline.concurrency.explore.finding import relative
from paceline.concurrency.explore.oracles import Suspect
from paceline.concurrency.explore.session import Answer, Session, Settings, Target

SCRIPTS, TESTS = 3, 8  # for one file that are tried
RACES, RANKS = "PC4", "PC5"
INERT = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)


def prove(findings: list[Finding], seconds: float) -> None:
    """Give each finding its proof, at most so many seconds for a file, and put the confirmed ones first."""
    files = choose_files([Path()], ()).files
    for path in sorted({each.path for each in findings}):
        of_file = [each for each in findings if each.path == path]
        runs = _explored(of_file, list(_drivers(Path(path), files, of_file)), seconds)
        for each in of_file:
            each.proof = each.proof or _unconfirmed(each, runs)
    findings.sort(key=lambda each: each.proof is None or each.proof.verdict != "confirmed")


def suspected_lines(file: Path) -> frozenset[tuple[str, int]]:
    """Return the lines of the findings in a script, and in what it imports from its folder."""
    names = _imported(_parsed(file))
    files = [file, *(each for each in file.parent.glob("*.py") if each.stem in names)]
    findings = (each for path in files for each in check_text(str(path), path.read_text("utf-8", "replace")))
    return frozenset().union(*(_suspect(each).target for each in findings))


def _explored(findings: Sequence[Finding], drivers: Sequence[Target], seconds: float) -> list[Answer]:
    """Run each driver while a finding is not confirmed."""
    ranks = 2 if any(each.rule.startswith(RANKS) for each in findings) else 0
    answers = []
    with Session() as session:
        for driver in drivers:
            if left := [each for each in findings if each.proof is None]:
                suspects = tuple(map(_suspect, left))
                of_driver = 0 if driver.function else ranks
                settings = Settings(seconds / len(drivers), ranks=of_driver, suspects=suspects, scope=(Path.cwd(),))
                answers.append(session.explore(driver, settings))
                for each, suspect in zip(left, suspects, strict=True):
                    rows = [row for row in answers[-1].report["findings"] if _is_at(row, suspect)]
                    each.proof = _proof(rows[0], answers[-1].report["command"]) if rows else None
    return answers


def _suspect(finding: Finding) -> Suspect:
    lines = {finding.line, *(step.line for step in finding.story)}
    return Suspect(str(Path(finding.path).resolve()), tuple(sorted(lines)), finding.rule.startswith(RACES))


def _is_at(row: dict[str, Any], suspect: Suspect) -> bool:
    """Whether something went wrong at the lines of a suspicion, or because a thread was interrupted there."""
    scenes = [*row["finding"]["story"], *row["finding"]["schedule"]]
    at = {(each["file"], each["line"]) for each in scenes if not each["what"].startswith("runs ")}
    return not suspect.target.isdisjoint(at)


def _proof(row: dict[str, Any], command: str) -> Proof:
    kind, message = row["finding"]["kind"], row["finding"]["message"]
    return Proof("confirmed", f"{kind}: {message}", f"--replay {row['replay']} {command}")


def _unconfirmed(finding: Finding, runs: Sequence[Answer]) -> Proof:
    """Say why a finding was not confirmed."""
    target = _suspect(finding).target
    reached = [each.report for each in runs if not target.isdisjoint(each.lines)]
    if not runs:
        return Proof("no driver", f"no script imports {finding.path}, and no test without fixtures mentions it")
    if not reached:
        why = "".join(sorted({f": {each.report['reason']}" for each in runs if each.report["reason"]})[:1])
        names = runs[0].report["target"]
        return Proof("no driver", f"none of {len(runs)} drivers, such as {names}, has an operation at its lines{why}")
    names = ", ".join(each["target"] for each in reached[:3])
    if failed := next((each for each in reached if each["without_a_switch"]), None):
        return Proof("not confirmed", f"{names} fails without any switch: {failed['finding']['message']}")
    if all(each["dismissed_after"] for each in reached):
        return Proof("dismissed within bounds", f"every order of conflicting operations of {names} was executed")
    return Proof("not confirmed", f"in {sum(each['schedules'] for each in reached):,} schedules of {names}")


def _drivers(path: Path, files: Sequence[Path], findings: Sequence[Finding]) -> Iterator[Target]:
    """Yield the file itself, if it does something, scripts that import it, and tests.

    Those tests are first that mention what the findings are in.
    """
    body, tests = _parsed(path).body, [file for file in files if "test" in file.stem]
    if _does_something(body):
        yield Target(str(path))
    elif any(isinstance(each, ast.FunctionDef) and each.name == "main" and not each.args.args for each in body):
        yield Target(str(path), function="main")
    others = (file for file in files if file not in tests and not file.samefile(path))
    importing = (
        file for file in others if path.stem in _imported(_parsed(file)) and _does_something(_parsed(file).body)
    )
    yield from (Target(relative(str(file))) for file in islice(importing, SCRIPTS))
    names = {part for each in findings for part in each.function.split(".")}
    ranked = [
        (not names.intersection(_words(test)), str(file), name)
        for file in tests
        if file.samefile(path) or path.stem in file.read_text(encoding="utf-8", errors="replace")
        for name, test in _tests(_parsed(file))
    ]
    for _, file, name in sorted(ranked)[:TESTS]:
        yield Target(relative(file), function=name)


def _does_something(body: Sequence[ast.stmt]) -> bool:
    return any(not isinstance(each, INERT) and not isinstance(getattr(each, "value", 0), ast.Constant) for each in body)


def _imported(tree: ast.Module) -> set[str]:
    """Return the last parts of the names of modules that a file imports, and what it imports from them."""
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
    names = {getattr(each, "module", None) or "" for each in nodes} | {one.name for each in nodes for one in each.names}
    return {name.rpartition(".")[2] for name in names}


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _words(node: ast.AST) -> set[str]:
    return {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the tests of a file that need no fixture: functions, and methods of classes."""
    for node in tree.body:
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        body: list[Any] = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in body:
            is_function = isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and each.name.startswith("test") and len(each.args.args) == bool(prefix):
                yield prefix + each.name, each
