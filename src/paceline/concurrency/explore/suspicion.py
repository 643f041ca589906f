"""What `paceline check` suspects, as lines: where a search begins, and what is to be confirmed."""

from __future__ import annotations

import ast
from pathlib import Path

from paceline.concurrency.check.engine import check_text
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.explore.oracles import Suspect

RACES = "PC4"


def suspect_of(finding: Finding) -> Suspect:
    lines = {finding.line, *(step.line for step in finding.story)}
    return Suspect(str(Path(finding.path).resolve()), tuple(sorted(lines)), finding.rule.startswith(RACES))


def suspected_lines(file: Path) -> frozenset[tuple[str, int]]:
    """Return the lines of the findings in a script, and in what it imports from its folder."""
    names = imported(parsed(file))
    files = [file, *(each for each in file.parent.glob("*.py") if each.stem in names)]
    findings = (each for path in files for each in check_text(str(path), path.read_text("utf-8", "replace")))
    return frozenset().union(*(suspect_of(each).target for each in findings))


def imported(tree: ast.Module) -> set[str]:
    """Return the last parts of the names of modules that a file imports, and what it imports from them."""
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)]
    names = {getattr(each, "module", None) or "" for each in nodes} | {one.name for each in nodes for one in each.names}
    return {name.rpartition(".")[2] for name in names}


def parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module([], [])
