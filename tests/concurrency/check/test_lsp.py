"""The language server, through a client on its standard input and output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BAD = """import threading

a = threading.Lock()
b = threading.Lock()


def f():
    with a:
        "\N{GRINNING FACE}\N{LATIN SMALL LETTER E WITH ACUTE}"; b.acquire(); b.release()


def g():
    with b:
        with a:
            pass
"""


class Client:
    """An editor: it sends messages, and reads those of the server."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "paceline", "check", "--lsp"]
        self.process = subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.requests = 0

    def send(self, method: str, given: object) -> None:
        """Send a notification."""
        self._write({"jsonrpc": "2.0", "method": method, "params": given})

    def ask(self, method: str, given: object) -> dict[str, Any]:
        """Send a request and return its response."""
        self.requests += 1
        self._write({"jsonrpc": "2.0", "id": self.requests, "method": method, "params": given})
        answer = self.read()
        assert answer["id"] == self.requests
        return answer

    def read(self) -> dict[str, Any]:
        """The next message of the server."""
        assert self.process.stdout is not None
        length = int(self.process.stdout.readline().partition(b":")[2])
        assert self.process.stdout.readline() == b"\r\n"
        found: dict[str, Any] = json.loads(self.process.stdout.read(length))
        return found

    def _write(self, message: object) -> None:
        assert self.process.stdin is not None
        body = json.dumps(message).encode()
        self.process.stdin.write(b"Content-Type: text\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def end(self) -> int:
        """Close the input and return the exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path)
    offered = client.ask("initialize", {"processId": None, "rootUri": tmp_path.as_uri(), "capabilities": {}})
    assert offered["result"]["capabilities"]["textDocumentSync"]["save"] == {"includeText": True}
    client.send("initialized", {})
    yield client
    client.process.kill()
    client.end()


def test_an_editor_is_told_the_findings_of_what_it_opens_and_saves(client: Client, tmp_path: Path) -> None:
    file = {"uri": (tmp_path / "a file.py").as_uri()}
    client.send("textDocument/didOpen", {"textDocument": {**file, "languageId": "python", "version": 1, "text": BAD}})
    told = client.read()
    assert (told["method"], told["params"]["uri"]) == ("textDocument/publishDiagnostics", file["uri"])
    (found,) = told["params"]["diagnostics"]
    assert (found["code"], found["source"], found["range"]["start"]["line"]) == ("PC101", "paceline", 8)
    line = BAD.splitlines()[8].encode("utf-16-le")
    assert line[2 * found["range"]["start"]["character"] :].decode("utf-16-le").startswith("b.acquire()")
    assert [step["message"][:8] for step in found["relatedInformation"]] == ["thread A"] * 2 + ["thread B"] * 2

    asked = {"textDocument": file, "range": found["range"], "context": {"diagnostics": [found]}}
    fixes = client.ask("textDocument/codeAction", asked)["result"]
    (edit,) = fixes[1]["edit"]["changes"][file["uri"]]
    assert edit["newText"] == "  # paceline: not a bug [PC101]"
    lines = BAD.splitlines()
    lines[edit["range"]["start"]["line"]] += edit["newText"]
    marked = "\n".join(lines)
    client.send("textDocument/didChange", {"textDocument": file, "contentChanges": [{"text": marked}]})
    client.send("textDocument/didSave", {"textDocument": file, "text": marked})
    assert client.read()["params"]["diagnostics"] == []
    client.send("textDocument/didClose", {"textDocument": file})
    assert client.read()["params"] == {"uri": file["uri"], "diagnostics": []}


def test_what_it_cannot_answer_is_an_error_and_it_goes_on(client: Client, tmp_path: Path) -> None:
    assert client.ask("textDocument/hover", {})["error"]["code"] == -32601
    client.send("textDocument/didOpen", {})
    assert client.read()["method"] == "window/logMessage"
    file = {"uri": (tmp_path / "x.py").as_uri(), "languageId": "python", "version": 1, "text": "lock = ("}
    client.send("textDocument/didOpen", {"textDocument": file})
    assert [found["code"] for found in client.read()["params"]["diagnostics"]] == ["PC001"]
    assert client.ask("shutdown", None)["result"] is None
    client.send("exit", None)
    assert client.end() == 0
