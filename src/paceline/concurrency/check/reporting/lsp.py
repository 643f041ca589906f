"""A language server on standard input and output: an editor shows the findings of the files that it opens and saves.

It speaks the Language Server Protocol 3.17: JSON after a header with its length. A file is checked when it is opened
and when it is saved. Each finding is a diagnostic with its rule as the code and the steps of its story as related
information, and further places of the same mistake after them; two quick fixes give it a verdict, by a comment at the
end of the line of each place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from paceline.concurrency.check.engine import examine, one_each
from paceline.concurrency.check.options import Options, excluded
from paceline.concurrency.check.reporting.findings import Finding, read_baseline
from paceline.concurrency.check.rules import RULES, as_text, own_rules
from paceline.concurrency.check.run import displayed, worth_showing

Message = dict[str, Any]
NO_SUCH_METHOD, FAILED = -32601, -32603
WARNING, INFORMATION = 2, 3
WHOLE_TEXT = 1  # how a client tells of changes
VERDICTS = ("bug", "not a bug")


class Server:
    """The state of one connection: the texts of the open files."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.known = read_baseline(Path(options.baseline)) if options.baseline else set[str]()
        self.texts: dict[str, str] = {}
        self.stopped = False

    def answers(self, message: Message) -> Iterator[Message]:
        """What is sent after a message: the response to a request, and new diagnostics."""
        method, params = message.get("method", ""), message.get("params") or {}
        if "id" in message:
            yield {"jsonrpc": "2.0", "id": message["id"], **self._response(method, params)}
        elif method == "textDocument/didOpen":
            yield self._checked(params["textDocument"]["uri"], params["textDocument"]["text"])
        elif method == "textDocument/didChange":
            self.texts[params["textDocument"]["uri"]] = params["contentChanges"][-1]["text"]
        elif method == "textDocument/didSave":
            uri = params["textDocument"]["uri"]
            yield self._checked(uri, params.get("text", self.texts.get(uri, "")))
        elif method == "textDocument/didClose":
            self.texts.pop(params["textDocument"]["uri"], None)
            yield _published(params["textDocument"]["uri"], [])

    def _response(self, method: str, params: Message) -> Message:
        if method == "initialize":
            changes = {"openClose": True, "change": WHOLE_TEXT, "save": {"includeText": True}}
            offered = {"textDocumentSync": changes, "codeActionProvider": {"codeActionKinds": ["quickfix"]}}
            return {"result": {"capabilities": offered, "serverInfo": {"name": "paceline"}}}
        if method == "textDocument/codeAction":
            return {"result": list(self._verdicts(params["textDocument"]["uri"], params["context"]["diagnostics"]))}
        if method == "shutdown":
            self.stopped = True
            return {"result": None}
        return {"error": {"code": NO_SUCH_METHOD, "message": f"{method} is not supported"}}

    def _checked(self, uri: str, text: str) -> Message:
        """Check a file and tell what is found in it."""
        self.texts[uri] = text
        file = Path(unquote(urlsplit(uri).path))
        if excluded(file, self.options.exclude):
            return _published(uri, [])
        path = displayed(file)
        rules = (*RULES.values(), *own_rules(as_text(self.options.rules)))
        findings = [finding for finding in examine(path, text, rules).findings if self.options.includes(finding.rule)]
        shown = one_each(f for f in worth_showing(findings, self.options) if f.fingerprint not in self.known)
        lines = text.splitlines()
        return _published(uri, [_diagnostic(finding, uri, lines) for finding in shown])

    def _verdicts(self, uri: str, diagnostics: Iterable[Message]) -> Iterator[Message]:
        """The quick fixes of diagnostics: comments at all places of each that say whether it is a bug."""
        lines = self.texts.get(uri, "").splitlines()
        for diagnostic in diagnostics:
            places = [diagnostic["range"]["start"]["line"], *diagnostic.get("data", {}).get("also_at", ())]
            free = [line for line in dict.fromkeys(places) if line < len(lines) and "#" not in lines[line]]
            if diagnostic.get("source") != "paceline" or not free:
                continue
            ends = [{"line": line, "character": _units(lines[line])} for line in free]
            for verdict in VERDICTS:
                comment = f"  # paceline: {verdict} [{diagnostic['code']}]"
                edits = [{"range": {"start": end, "end": end}, "newText": comment} for end in ends]
                yield {
                    "title": f"{diagnostic['code']} is {'a bug' if verdict == 'bug' else verdict}: say so in a comment",
                    "kind": "quickfix",
                    "diagnostics": [diagnostic],
                    "edit": {"changes": {uri: edits}},
                }


def serve(incoming: BinaryIO, outgoing: BinaryIO, options: Options) -> int:
    """Answer messages until `exit` or the end of the input; 0 where the client asked for the end before, else 1."""
    server = Server(options)
    for message in _messages(incoming):
        if message.get("method") == "exit":
            break
        try:
            answers = list(server.answers(message))
        except Exception as error:  # a fault of the server in one message: named, and the next one is answered
            failure = {"code": FAILED, "message": f"{type(error).__name__}: {error}"}
            answers = [{"jsonrpc": "2.0", "id": message["id"], "error": failure}] if "id" in message else [_log(error)]
        for answer in answers:
            body = json.dumps(answer).encode()
            outgoing.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            outgoing.flush()
    return 0 if server.stopped else 1


def _messages(incoming: BinaryIO) -> Iterator[Message]:
    """The messages of a client, until the input ends."""
    length = 0
    while header := incoming.readline():
        name, _, value = header.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
        elif not header.strip() and length:
            yield json.loads(incoming.read(length))
            length = 0


def _published(uri: str, diagnostics: list[Message]) -> Message:
    params = {"uri": uri, "diagnostics": diagnostics}
    return {"jsonrpc": "2.0", "method": "textDocument/publishDiagnostics", "params": params}


def _log(error: Exception) -> Message:
    params = {"type": 1, "message": f"paceline: {type(error).__name__}: {error}"}
    return {"jsonrpc": "2.0", "method": "window/logMessage", "params": params}


def _diagnostic(finding: Finding, uri: str, lines: list[str]) -> Message:
    steps = [
        {"location": {"uri": uri, "range": _range(step.line, 1, lines)}, "message": f"{step.who}: {step.what}"}
        for step in finding.story
    ]
    also = [
        {"location": {"uri": uri, "range": _range(place.line, place.column, lines)}, "message": place.message}
        for place in finding.further
    ]
    return {
        "range": _range(finding.line, finding.column, lines),
        "severity": INFORMATION if finding.rank == "low" else WARNING,
        "code": finding.rule,
        "source": "paceline",
        "message": "\n=> ".join(filter(None, (finding.message, finding.remedy, finding.elsewhere))),
        "relatedInformation": steps + also,
        "data": {
            "fingerprint": finding.fingerprint,
            "rank": finding.rank,
            "also_at": [place.line - 1 for place in finding.further],
        },
    }


def _range(line: int, column: int, lines: list[str]) -> Message:
    """Return the range from a column, in bytes from 1, to the end of its line, in units of UTF-16 from 0."""
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    before = text.encode("utf-8", "replace")[: column - 1].decode("utf-8", "replace")
    start = before if before.strip() else text[: len(text) - len(text.lstrip())]
    at = max(line - 1, 0)
    return {"start": {"line": at, "character": _units(start)}, "end": {"line": at, "character": _units(text)}}


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
