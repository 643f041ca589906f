"""What a rule is: a row of data, and the function that finds what the row speaks of.

A row (in the `rules.toml` of its family) has the code, the reason, an example that is reported and one that is not, and
the sentences of each *form* of the mistake. The function finds *witnesses*: the place, and whatever the sentences name.
So all prose is data, and a witness is all that an analysis has to hand over.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paceline.concurrency.check.flow.effects import text_of
from paceline.concurrency.check.libraries.catalogue import QUEUES
from paceline.concurrency.check.reporting.findings import Finding, Step
from paceline.concurrency.check.summaries import Facts, Use, call_steps
from paceline.concurrency.check.syntax.declarations import Function, Resource
from paceline.concurrency.check.syntax.tree import dotted, short_name
from paceline.concurrency.check.threads.atomicity import Region
from paceline.narrative import Wait


class Witness:
    """A place where a rule's mistake is, the form of the mistake, and the terms that its sentences name."""

    def __init__(
        self,
        at: ast.AST,
        fn: Function,
        form: str = "found",
        *,
        confidence: float | None = None,
        story: Sequence[Step] | None = None,
        waits: Sequence[Wait] | None = None,
        **terms: Any,
    ) -> None:
        self.at, self.fn, self.form = at, fn, form
        self.confidence, self.story, self.waits = confidence, story, waits
        self.terms = {"at": at, "fn": fn, **terms}


def not_atomic(region: Region, form: str, **terms: Any) -> Witness:
    """The use of a region that relies on a check which another thread or task can undo before."""
    return Witness(region.use.node, region.use.fn, form, region=region, use=region.use, **terms)


class Sentences(string.Formatter):
    """Templates over terms; `{call!c}` is a call without its arguments, `{lock!d}` a dotted name, `{test!u}` source."""

    _CONVERSIONS: Mapping[str, Callable[[Any], str]] = {"c": text_of, "d": dotted, "n": short_name, "u": ast.unparse}

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """The value as a conversion writes it."""
        convert = self._CONVERSIONS.get(conversion or "")
        return convert(value) if convert is not None else super().convert_field(value, conversion)

    def value(self, path: str, terms: Mapping[str, Any]) -> Any:
        """What a path such as `wait.steps` names."""
        return self.get_field(path, (), terms)[0]

    def terms(self, template: str) -> set[str]:
        """The terms that a template names."""
        paths = (path for _, path, _, _ in self.parse(template) if path is not None)
        return {re.split(r"[.\[]", path)[0] for path in paths}


SENTENCES = Sentences()


class Form(NamedTuple):
    """The sentences of one form of a mistake."""

    message: str
    remedy: str
    about: str
    story: tuple[str, ...] = ()  # `who | line | what`; `who | *steps | what` is a path of calls; `*steps` ready steps
    waits: tuple[str, ...] = ()  # `who | did | wants | whom`
    confidence: float = 0.8

    @property
    def terms(self) -> set[str]:
        """What a witness of this form has to carry."""
        lines = ["{" + row.split(" | ", 2)[" | " in row].lstrip("*") + "}" for row in self.story]
        parts = (self.message, self.remedy, self.about, *self.story, *self.waits, *lines)
        return set().union(*map(SENTENCES.terms, parts))

    def finding(self, code: str, witness: Witness) -> Finding:
        """The finding that a witness amounts to."""
        terms = witness.terms
        at = witness.at.context_expr if isinstance(witness.at, ast.withitem) else witness.at
        story = witness.story if witness.story is not None else [s for row in self.story for s in _steps(row, terms)]
        waits = witness.waits
        if waits is None:
            waits = [Wait(*(SENTENCES.vformat(part, (), terms) for part in row.split(" | "))) for row in self.waits]
        return Finding(
            code,
            getattr(at, "lineno", 1),
            getattr(at, "col_offset", 0) + 1,
            witness.fn.qualname,
            SENTENCES.vformat(self.message, (), terms),
            list(story),
            list(waits),
            SENTENCES.vformat(self.remedy, (), terms),
            self.confidence if witness.confidence is None else witness.confidence,
            SENTENCES.vformat(self.about, (), terms),
        )


def in_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of TOML whose lists are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def _steps(row: str, terms: Mapping[str, Any]) -> list[Step]:
    if " | " not in row:
        return list(SENTENCES.value(row[1:], terms))
    who, line, what = row.split(" | ", 2)
    who, what = SENTENCES.vformat(who, (), terms), SENTENCES.vformat(what, (), terms)
    if line.startswith("*"):
        return call_steps(who, SENTENCES.value(line[1:], terms), what)
    return [Step(who, SENTENCES.value(line, terms), what)]


class Rule(NamedTuple):
    """One rule of the checker."""

    code: str
    name: str
    summary: str  # one line, for tables
    why: str
    finds: tuple[Callable[[Facts], Iterator[Witness]], ...]  # its own function, and the solvers that its row calls for
    bad: str
    good: str
    forms: Mapping[str, Form]
    needs: tuple[str, ...] = ()  # a file without any of these words is skipped
    own: bool = False  # of the project that is checked, which has added it

    def findings(self, facts: Facts) -> Iterator[Finding]:
        """What the rule finds in a program."""
        witnesses = (witness for find in self.finds for witness in find(facts))
        return (self.forms[witness.form].finding(self.code, witness) for witness in witnesses)


def resource_of(call: ast.Call, methods: tuple[str, ...], fn: Function, facts: Facts) -> Resource | None:
    """The lock, event, thread or other resource of which a call is one of these methods."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr in methods
    return facts.module.resource(call.func.value, fn) if named else None  # type: ignore[attr-defined]


def queue_of(call: ast.Call, methods: tuple[str, ...], fn: Function, facts: Facts, bounded: bool = False) -> str:
    """The queue of which a call is such a method; empty where it is none, or one of several."""
    queue = resource_of(call, methods, fn, facts)
    if queue is None or queue.kind not in {*QUEUES, "SimpleQueue"} or queue.one_of_several:
        return ""
    return queue.id if queue.bounded or not bounded else ""


def queue_uses(facts: Facts, methods: tuple[str, ...], of: str | None = None) -> list[Use]:
    """The calls of these methods of queues, those of one of several left out."""
    return [use for use in facts.uses(methods, (*QUEUES, "SimpleQueue"), of) if not use.resource.one_of_several]


def blocks_that_make(kind: str, fn: Function, facts: Facts) -> Iterator[tuple[ast.With | ast.AsyncWith, str]]:
    """The `with` blocks of a function that make a pool or an executor, each with the name that they give it."""
    for block in fn.withs:
        for item in block.items:
            construction = facts.module.constructed(item.context_expr, fn)
            name = dotted(item.optional_vars) if item.optional_vars is not None else ""
            if name and construction is not None and construction[0] == kind:
                yield block, name
