"""The checker's options: from the command line, else from `[tool.paceline.check]` in pyproject.toml."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.concurrency.check.reporting.comments import UNUSED
from paceline.concurrency.check.reporting.findings import LOWEST_FIRST
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.rules.rows import as_text, own_rules, read
from paceline.concurrency.check.syntax.source import UNREADABLE
from paceline.errors import UsageError, suggest

# Not programs of the project, and passed over without a word.
EXCLUDED_FOLDERS = (
    ".git",
    ".hg",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".tox",
    ".nox",
    ".eggs",
)
# Passed over, and counted, unless they are packages.
OUTPUT_FOLDERS = ("build", "dist")


@dataclass(frozen=True)
class Options:
    """The options; each field is a key of the table, with dashes for underscores."""

    select: tuple[str, ...] = ("PC",)
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    min_rank: str = LOWEST_FIRST[0]
    everything: bool = False  # what the models doubt as well
    min_confidence: float = 0.2  # deprecated; what is hardly a bug is hidden as well, see benchmarks/checker
    baseline: str = ""
    feedback: str = ""
    libraries: tuple[str, ...] = ()  # files with what calls of other libraries wait for
    rules: tuple[dict[str, Any], ...] = ()  # rules of the project's own, as rows
    budget: int = 0  # lines that are walked at most, the most promising files first; 0 for all
    cache: bool = True
    jobs: int = 0  # processes; 0 for one per CPU in a large tree

    @property
    def least(self) -> float:
        """The value of the model below which findings are hidden; 0 hides none."""
        return 0.0 if self.everything else self.min_confidence

    def includes(self, code: str) -> bool:
        """Whether findings of this rule are reported; a choice of rules makes no unreadable file a clean one."""
        chosen = code.startswith(self.select) or code == UNREADABLE
        return chosen and not (self.ignore and code.startswith(self.ignore))


def read_options(start: Path, **overrides: Any) -> Options:
    """The table of the nearest pyproject.toml, overridden by the given options; None stands for one not given."""
    table = _table(start)
    fields = {field.name: field for field in dataclasses.fields(Options)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise UsageError(f"[tool.paceline.check] has no key {key!r}: {suggest(name, fields)}")
        values[name] = tuple(value) if isinstance(value, list) else value
    values.update({name: value for name, value in overrides.items() if value is not None})
    options = Options(**values)
    if options.min_rank not in LOWEST_FIRST:
        raise UsageError(f"min-rank is {options.min_rank!r}. It is one of {', '.join(LOWEST_FIRST)}")
    own = [rule.code for rule in own_rules(as_text(options.rules))]
    for code in (*options.select, *options.ignore):
        if not any(known_code.startswith(code) for known_code in (*RULES, *own, UNREADABLE, UNUSED)):
            raise UsageError(f"no rule begins with {code!r}: {suggest(code, RULES)}")
    return options


def parse_codes(text: str | None) -> tuple[str, ...] | None:
    """Split `PC1,PC501` at its commas."""
    return None if text is None else tuple(code.strip() for code in text.split(",") if code.strip())


def _table(start: Path) -> dict[str, Any]:
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            try:
                table = read(file).get("tool", {}).get("paceline", {}).get("check", {})
            except ValueError as error:
                raise UsageError(f"{file} is not valid TOML: {error}") from None
            if not isinstance(table, dict):
                raise UsageError(f"[tool.paceline.check] of {file} is not a table")
            return table
    return {}
