"""Checks the text of one file. The code is never imported or run, and no file can make the checker fail."""

from __future__ import annotations

import gc
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from paceline.concurrency.check import libraries
from paceline.concurrency.check.interface import Interface, interface_of
from paceline.concurrency.check.ranking import Signs
from paceline.concurrency.check.reporting.findings import Finding, with_comments
from paceline.concurrency.check.rules import RULES
from paceline.concurrency.check.rules.rule import Rule
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.source import OLD, UNREADABLE, Unreadable, parse
from paceline.concurrency.check.together import divided, place, programs
from paceline.concurrency.check.together.merging import merge
from paceline.concurrency.check.values.module import Module

DEPTH = 6_000  # recursion limit for nested syntax; the parser itself gives up before

#: A file without any of these words has nothing to do with threads, tasks, processes or ranks: it is only parsed.
RELEVANT = (
    "thread", "Thread", "async ", "lock", "Lock", "queue", "Queue", "multiprocess", "asyncio", "concurrent", "mutex",
    "fork", "Popen", "signal", "__del__", "weakref", "gc.callbacks", "torch", "mpi4py", "MPI", "dist.", "accelerat",
    "horovod", "deepspeed", "lightning", "rank", "Rank", "exists", "mktemp", "chdir", "sleep", "requests", "urlopen",
    "flask", "grpc", "inlineCallbacks", "distributed", "multihost", "collective", "process_zero", "paceline:",
    "recv(", "readline(", "makedirs(", "mkdir(",
    *libraries.threaded(),
)  # fmt: skip


class Examined(NamedTuple):
    """What is found in one file, and what it says to the others."""

    findings: list[Finding]
    interface: Interface = Interface()
    #: Functions with more paths than their budget of steps, as `name, line N`: walked in part.
    cut: tuple[str, ...] = ()


def unreadable(path: str, why: Unreadable) -> Finding:
    """The finding for a file of which nothing was checked; it is certain, so no level or choice of rules hides it."""
    remedy = "nothing in this file was checked"
    return Finding(UNREADABLE, why.line, 1, "<module>", str(why), remedy=remedy, confidence=1.0, path=path)


def is_relevant(path: str, text: str) -> bool:
    """Whether a file is analysed at all: it has to do with threads, or may re-export what does."""
    return path.endswith("__init__.py") or any(word in text for word in RELEVANT)


def _said(rule: Rule, text: str) -> bool:
    """Whether a text has one of the words without which a rule finds nothing."""
    return any(word in text for word in rule.needs)


def check_text(path: str, text: str, rules: Iterable[Rule] = tuple(RULES.values())) -> list[Finding]:
    """The findings of one file in the order of its lines, without those that a comment takes away."""
    return [finding for finding in examine(path, text, rules).findings if finding.verdict is not False]


def examine(path: str, text: str, rules: Iterable[Rule] = tuple(RULES.values())) -> Examined:
    """The findings of one file, those that a comment calls no bug included, and its interface."""
    with _garbage_collected_once():
        return _examine(path, text, rules)


def examine_together(texts: Mapping[str, str], rules: Iterable[Rule] = tuple(RULES.values())) -> dict[str, Examined]:
    """The findings of the files of one program, read as one tree: nothing is left to be linked between them."""
    with _garbage_collected_once():
        try:
            with _deep_recursion():
                trees = {path: parse(text) for path, text in sorted(texts.items())}
                facts = Facts(Module(merge(trees)))
                findings = _findings(facts, "\n".join(texts.values()), rules)
                cut = [(*place(fn.line, list(trees)), fn) for fn in facts.walker.cut]
        except (Unreadable, RecursionError, MemoryError):
            return _without_unreadable(texts, rules)
        by_path = divided(findings, list(trees))
        return {
            path: Examined(
                _settled(by_path[path], path, text),
                cut=tuple(sorted(f"{fn.qualname}, line {line}" for at, line, fn in cut if at == path)),
            )
            for path, text in texts.items()
        }


def _without_unreadable(texts: Mapping[str, str], rules: Iterable[Rule]) -> dict[str, Examined]:
    """The files that cannot be read alone, and the programs that the others make up without them."""
    alone = {path: _examine(path, text, rules) for path, text in texts.items()}
    broken = {path for path, examined in alone.items() if any(f.rule == UNREADABLE for f in examined.findings)}
    readable = {path: text for path, text in texts.items() if path not in broken}
    for group in programs(readable) if broken else ():
        alone |= examine_together({path: texts[path] for path in group}, rules)
    return alone


def _examine(path: str, text: str, rules: Iterable[Rule]) -> Examined:
    interface, cut, findings = Interface(), list[str](), list[Finding]()
    try:
        with _deep_recursion():
            tree = parse(text)  # always: what Python refuses is not clean, whatever it is about
            if not is_relevant(path, text) and not any(rule.own and _said(rule, text) for rule in rules):
                return Examined([])
            facts = Facts(Module(tree))
            findings = _findings(facts, text, rules)
            interface = interface_of(facts)
            cut = sorted(f"{fn.qualname}, line {fn.line}" for fn in facts.walker.cut)
    except Unreadable as error:
        findings = [unreadable(path, error)]
    except (RecursionError, MemoryError):
        findings = [unreadable(path, Unreadable("nested too deeply"))]
    return Examined(_settled(findings, path, text), interface, tuple(cut))


def _settled(findings: list[Finding], path: str, text: str) -> list[Finding]:
    """The findings of a file in the order of its lines, with the verdicts of its comments."""
    findings = with_comments(findings, text)
    findings.sort(key=lambda f: (f.line, f.column, f.rule))
    same: Counter[tuple[str, str, str]] = Counter()
    others = Counter(finding.rule for finding in findings)
    for finding in findings:
        finding.path = path
        finding.signs |= {
            "others in the file": round(math.log(len(findings)) / 3, 3),
            "others of the rule": round(math.log(others[finding.rule]) / 2, 3),
        }
        finding.ordinal = same[finding.rule, finding.function, finding.about]
        same[finding.rule, finding.function, finding.about] += 1
    return findings


def _findings(facts: Facts, text: str, rules: Iterable[Rule]) -> list[Finding]:
    findings: dict[tuple[str, int, int], Finding] = {}
    signs = Signs(facts)
    text += " async def await " if OLD.search(text) else ""  # what coroutines of before are read as
    presence: dict[str, bool] = {}  # whether a word is in the text: most words are needed by several rules

    def said(word: str) -> bool:
        if word not in presence:
            presence[word] = word in text
        return presence[word]

    for rule in rules:
        if rule.needs and not any(map(said, rule.needs)):
            continue
        for finding in rule.findings(facts):
            finding.subject = subject_of(finding, facts.module)
            finding.signs = signs.of(finding)
            findings.setdefault((finding.rule, finding.line, finding.column), finding)
    return list(findings.values())


@contextmanager
def _garbage_collected_once() -> Iterator[None]:
    """Collect a syntax tree, whose nodes know their parents, once it is done with; before, nothing could be freed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)


@contextmanager
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


# Makes one finding of a mistake that a file repeats: the same rule about the same object, at several places.
# A lock that is taken without `finally` in twenty methods is one decision to repeat or to repair, not twenty. Every
# place keeps its fingerprint, so that a comment, a baseline or a verdict about one of them says nothing of the others.


def subject_of(finding: Finding, module: Module) -> str:
    """What a finding is about, by names that mean the same in the whole file; empty where one is known only locally."""
    owner = finding.function.partition(".")[0]
    names = [re.sub(r"^self\b", owner, name) for name in finding.about.split()]
    declared = module.classes.keys() | module.top.nested.keys() | module.top.bound.keys()
    return " ".join(names) if all(re.split(r"\W", name, maxsplit=1)[0] in declared for name in names) else ""


def one_each(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each mistake, at its first place in the file, as likely as the likeliest of its places."""
    mistakes: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        same = (finding.path, finding.rule, finding.subject or finding.fingerprint)
        mistakes.setdefault(same, []).append(finding)
    return [_joined(places) for places in mistakes.values()]


def _joined(places: list[Finding]) -> Finding:
    first, *further = sorted(places, key=lambda place: (place.line, place.column))
    confidence, bug = max(place.confidence for place in places), max(place.bug for place in places)
    return replace(first, confidence=confidence, bug=bug, further=further)
