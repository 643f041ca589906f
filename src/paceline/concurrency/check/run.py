"""Checks files and folders, with cache, baseline, feedback and a least rank."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from paceline import user_cache
from paceline.concurrency.check import libraries
from paceline.concurrency.check.across import findings_across
from paceline.concurrency.check.engine import Examined, is_relevant, one_each, unreadable
from paceline.concurrency.check.interface import Interface, read_interface
from paceline.concurrency.check.options import Options, Skipped, choose_files
from paceline.concurrency.check.parallel import Program, Source, check_programs
from paceline.concurrency.check.ranking import Verdict, marked, read_verdicts, weigh
from paceline.concurrency.check.ranking.order import within
from paceline.concurrency.check.reporting.findings import UNUSED, Finding, Step, is_ranked, read_baseline, with_comments
from paceline.concurrency.check.rules import as_text, own_rules
from paceline.concurrency.check.syntax.source import Unreadable, read
from paceline.concurrency.check.together import programs
from paceline.narrative import Wait

FOLDER = ".paceline_cache"
_KEPT = (
    *("rule", "line", "column", "function", "message", "remedy"),
    *("confidence", "about", "ordinal", "verdict", "subject", "signs"),
)


class Cache:
    """A cache by content: the findings of a text are reused when the same text is checked again.

    There is one file per text under `.paceline_cache`, named by the hash of the text and of the checker's own source,
    so a change of either is never missed. Files are replaced and not followed: a project that is checked may hold a
    link there.

    Findings and interfaces by the content of the file that they belong to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        #: False once a write has failed, so that a read-only folder is tried only once.
        self.writes = True

    def get(self, text: str) -> Examined | None:
        """What was found in this text; None when that is not known."""
        try:
            rows, interface, cut = json.loads(user_cache.read(self.folder / _name(text)))
            return Examined([_finding(row) for row in rows], read_interface(interface), tuple(cut))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, text: str, examined: Examined) -> None:
        """Store what was found in this text, if the folder is writable."""
        if not self.writes:
            return
        findings, interface, cut = examined
        try:
            if not self.folder.is_dir():
                user_cache.write(self.folder / ".gitignore", b"*\n")
            user_cache.write(
                self.folder / _name(text), json.dumps([[_row(f) for f in findings], interface, cut]).encode()
            )
        except OSError:
            self.writes = False


def _name(text: str) -> str:
    return hashlib.sha256(_checker_source() + text.encode("utf-8", "surrogatepass")).hexdigest()[:32] + ".json"


@cache
def _checker_source() -> bytes:
    """The hash of the checker's own source, since another version may find something else."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.*")):
        if file.suffix in (".py", ".toml", ".json"):
            digest.update(file.read_bytes())
    return digest.digest()


def _row(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in _KEPT} | {"story": finding.story, "waits": finding.waits}


def _finding(row: dict[str, Any]) -> Finding:
    story, waits = [Step(*s) for s in row.pop("story")], [Wait(*w) for w in row.pop("waits")]
    return Finding(**row, story=story, waits=waits)


#: A finding to which its own rule gives less, or the model of bugs, is reported only where everything is.
DOUBTED, UNLIKELY = 0.5, 0.04


@dataclass
class Report:
    """The findings of a run of the checker, and what it has read."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    known: int = 0  # findings left out because the baseline has them
    #: Files and folders under the given paths that were passed over on purpose.
    skipped: list[Skipped] = field(default_factory=list)
    #: Files in which the checker itself failed; nothing is known of them.
    failed: list[Skipped] = field(default_factory=list)
    #: Files that the budget did not reach: nothing is known of them.
    unwalked: list[Skipped] = field(default_factory=list)
    #: Functions with more paths than are walked of one function, by file.
    cut: list[Skipped] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """3 where the checker failed in a file, whatever it found elsewhere; else 1 for findings, 0 for none."""
        if self.failed:
            return 3
        return 1 if self.findings else 0

    def summary(self) -> str:
        """One line for people, after one for each file that was passed over."""
        notes = [f"{path}: not checked, {why}" for path, why in self.skipped]
        notes += [f"{path}: not checked, the checker failed: {why}. Please report it" for path, why in self.failed]
        notes += [f"{path}: {why}" for path, why in self.cut]
        within = " within the budget" if self.unwalked or self.cut else ""
        outcome = f"{len(self.findings)} found{within}" if self.findings else f"nothing found{within}"
        baseline = f", {self.known} known from the baseline" if self.known else ""
        skipped = f", {len(self.skipped)} passed over" if self.skipped else ""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        over = f", {len(self.unwalked)} over the budget and not walked" if self.unwalked else ""
        files = "1 file" if self.files == 1 else f"{self.files:,} files"
        notes.append(f"{outcome} in {files}, {self.lines:,} lines{baseline}{skipped}{failed}{over}")
        return "\n".join(notes)


def check_paths(paths: Iterable[Path], options: Options) -> Report:
    """Check every Python file under these paths. Their order makes no difference."""
    chosen = choose_files(paths, options.exclude)
    report = Report(files=len(chosen.files), skipped=sorted(chosen.skipped))
    fingerprints = read_baseline(Path(options.baseline)) if options.baseline else set()
    findings = [unreadable(displayed(Path(folder)), Unreadable(why)) for folder, why in chosen.unreadable]
    findings += _findings(chosen.files, options, report)
    findings = [finding for finding in findings if options.includes(finding.rule)]
    findings = worth_showing(findings, options)
    report.findings = one_each(finding for finding in findings if finding.fingerprint not in fingerprints)
    report.known = len(one_each(finding for finding in findings if finding.fingerprint in fingerprints))
    return report


def worth_showing(findings: list[Finding], options: Options) -> list[Finding]:
    """The findings that are neither doubted by the models nor ranked too low, and those that a comment calls bugs."""
    verdicts = _verdicts(options)
    if options.least:
        findings = [finding for finding in findings if finding.confidence >= DOUBTED or finding.verdict is not None]
    weigh(findings, [*verdicts, *marked(findings)])
    if options.least:
        findings = [finding for finding in findings if finding.bug >= UNLIKELY or finding.verdict is not None]
    findings.sort(key=lambda f: (f.path, f.line, f.column, f.rule))
    if verdicts:
        findings.sort(key=lambda f: -f.confidence)
    findings = [finding for finding in findings if finding.verdict is not False]
    shown = [f for f in findings if f.verdict or f.confidence >= options.least]
    return [f for f in shown if f.verdict or is_ranked(f.rank, options.min_rank)]


def _findings(files: Iterable[Path], options: Options, report: Report) -> list[Finding]:
    """The findings of all files that the budget reaches, from the cache where possible."""
    libraries.add(options.libraries)
    cache = Cache(Path.cwd()) if options.cache and not options.libraries else None
    findings: list[Finding] = []
    sources = _sources(files, report, findings)
    own = as_text(options.rules)
    words = {word for rule in own_rules(own) for word in rule.needs}
    relevant = [source for source in sources if is_relevant(*source) or any(word in source.text for word in words)]
    reached = within(options.budget, relevant, _verdicts(options))
    report.unwalked = [Skipped(source.path, "over the budget") for source in relevant if source.path not in reached]
    over = {path for path, _ in report.unwalked}
    unknown: list[Program] = []
    interfaces: dict[str, Interface] = {}

    def keep(path: str, examined: Examined) -> None:
        for finding in examined.findings:
            finding.path = path
        findings.extend(examined.findings)
        interfaces[path] = examined.interface
        report.cut += [Skipped(path, f"{function}: has more paths than were walked") for function in examined.cut]

    for program in _programs([source for source in sources if source.path not in over], reached):
        keys = _keys(program, own)
        cached = [cache.get(key) for key in keys] if cache is not None else [None]
        if None in cached:
            unknown.append(program)
        for source, examined in zip(program, cached, strict=False) if None not in cached else ():
            keep(source.path, examined)  # type: ignore[arg-type]
    jobs = 1 if options.libraries else options.jobs
    for program, results in zip(unknown, check_programs(unknown, jobs, own), strict=True):
        for source, key, checked in zip(program, _keys(program, own), results, strict=True):
            if checked.failure:
                report.failed.append(Skipped(source.path, checked.failure))
            elif cache is not None:
                cache.put(key, checked.examined)
            keep(source.path, checked.examined)
    report.cut.sort()
    return _with_those_across(findings, interfaces)


def _sources(files: Iterable[Path], report: Report, findings: list[Finding]) -> list[Source]:
    """The texts of the files; one that cannot be read is a finding."""
    sources = []
    for file in files:
        path = displayed(file)
        try:
            text = read(file)
        except Unreadable as error:
            findings.append(unreadable(path, error))
            continue
        report.lines += text.count("\n") + 1
        sources.append(Source(path, text))
    return sources


def _programs(sources: list[Source], reached: set[str]) -> Iterator[Program]:
    """The files to be checked: those that make up a small program together, every other one alone.

    A file that has nothing to do with threads or ranks is among them, since only what can be parsed is clean.
    """
    texts = dict(sources)
    groups = [group for group in programs(texts) if not reached.isdisjoint(group)]
    together = {path for group in groups for path in group}
    yield from (tuple(Source(path, texts[path]) for path in group) for group in groups)
    yield from ((source,) for source in sources if source.path not in together)


def _keys(program: Program, own: str) -> list[str]:
    """What the results of each file depend on."""
    if len(program) == 1:
        return [f"{own}\0{program[0].text}"]
    text = "\0".join(part for source in program for part in source)
    return [f"{own}\0{source.path}\0{text}" for source in program]


def _verdicts(options: Options) -> list[Verdict]:
    return read_verdicts(Path(options.feedback)) if options.feedback else []


def _with_those_across(findings: list[Finding], interfaces: dict[str, Interface]) -> list[Finding]:
    """The findings of the files, and those of the files together that no comment suppresses."""
    keys = {(f.path, f.rule, f.line) for f in findings}
    for finding in findings_across(interfaces):
        if (finding.path, finding.rule, finding.line) in keys:
            continue
        unsuppressed = with_comments([finding], read(Path(finding.path)))
        if finding in unsuppressed:
            findings.append(finding)
        if finding not in unsuppressed or finding.verdict is not None:  # the comment is used after all
            unused = (finding.path, finding.line)
            findings = [f for f in findings if f.rule != UNUSED or (f.path, f.line) != unused]
    return findings


def displayed(file: Path) -> str:
    """The path relative to the current folder where possible, so that fingerprints are the same on every machine."""
    for absolute in (Path.resolve, Path.absolute):
        try:
            return absolute(file).relative_to(Path.cwd()).as_posix()
        except (ValueError, OSError, RuntimeError):  # elsewhere, or a link to itself
            continue
    return file.as_posix()
