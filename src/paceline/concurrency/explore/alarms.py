"""From alarm to proof: the findings of `paceline check` are looked for by running the project's own code.

What is run is a *driver*: the file of a finding as a script, a script that imports it, or a test whose file mentions
it. A finding is confirmed by a failure at one of its lines, or, a race, by a run in which its story comes true.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.concurrency.check.options import choose_files
from paceline.concurrency.check.reporting.findings import Finding, Proof
from paceline.concurrency.explore.finding import relative
from paceline.concurrency.explore.oracles import Suspect
from paceline.concurrency.explore.session import Answer, Session, Settings, Target
from paceline.concurrency.explore.suspicion import imported, parsed, suspect_of

SCRIPTS, TESTS = 3, 8  # for one file that are tried
RANKS = "PC5"
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


def _explored(findings: Sequence[Finding], drivers: Sequence[Target], seconds: float) -> list[Answer]:
    """Run each driver while a finding is not confirmed."""
    ranks = 2 if any(each.rule.startswith(RANKS) for each in findings) else 0
    answers, end = [], time.monotonic() + seconds
    with Session() as session:
        for driver in drivers:
            rest = end - time.monotonic()
            if rest > 0 and (left := [each for each in findings if each.proof is None]):
                suspects = tuple(map(suspect_of, left))
                settings = Settings(
                    min(seconds / len(drivers), rest),
                    ranks=0 if driver.function or driver.test else ranks,
                    suspects=suspects,
                    scope=(Path.cwd(),),
                    run_seconds=max(1.0, rest / 2),  # one that never ends leaves time for the others
                )
                answers.append(session.explore(driver, settings))
                for each, suspect in zip(left, suspects, strict=True):
                    rows = [row for row in answers[-1].report["findings"] if _is_at(row, suspect)]
                    each.proof = _proof(rows[0], answers[-1].report["command"]) if rows else None
    return answers


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
    target = suspect_of(finding).target
    reached = [each.report for each in runs if not target.isdisjoint(each.lines)]
    if not runs:
        return Proof("no driver", f"no script imports {finding.path}, and no test mentions it")
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
    body, tests = parsed(path).body, [file for file in files if "test" in file.stem]
    if _does_something(body):
        yield Target(str(path))
    elif any(isinstance(each, ast.FunctionDef) and each.name == "main" and not each.args.args for each in body):
        yield Target(str(path), function="main")
    others = (file for file in files if file not in tests and not file.samefile(path))
    importing = (file for file in others if path.stem in imported(parsed(file)) and _does_something(parsed(file).body))
    yield from (Target(relative(str(file))) for file in islice(importing, SCRIPTS))
    names = {part for each in findings for part in each.function.split(".")}
    ranked = [
        (not names.intersection(_words(test)), relative(str(file)), name, needs_pytest)
        for file in tests
        if file.samefile(path) or path.stem in file.read_text(encoding="utf-8", errors="replace")
        for name, test, needs_pytest in _tests(parsed(file))
    ]
    for _, file_name, test, needs_pytest in sorted(ranked)[:TESTS]:
        yield Target(file_name, test=test) if needs_pytest else Target(file_name, function=test)


def _does_something(body: Sequence[ast.stmt]) -> bool:
    return any(not isinstance(each, INERT) and not isinstance(getattr(each, "value", 0), ast.Constant) for each in body)


def _words(node: ast.AST) -> set[str]:
    return {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}


def _tests(tree: ast.Module) -> Iterator[tuple[str, ast.AST, bool]]:
    """Yield the tests of a file, and whether pytest must run them: those of classes, and those with fixtures."""
    for node in tree.body:
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        body: list[Any] = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test"):
                yield prefix + each.name, each, bool(prefix or each.args.args)
