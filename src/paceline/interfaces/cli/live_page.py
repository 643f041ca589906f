"""The server of `paceline report --live`, for the browsers of this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from paceline.errors import UsageError
from paceline.runtime.report.page import LivePage
from paceline.runtime.report.reading import run_folders


class _Handler(BaseHTTPRequestHandler):
    """Answers this machine's browser; another site's page that is led here by a name of its own gets nothing."""

    page: LivePage

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)
        if self.path == "/":
            return self._send("text/html", self.page.report())
        if self.path == "/state":
            return self._send("application/json", json.dumps(self.page.state()))
        return self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Requests are not worth a line of the terminal."""


def server(folders: Sequence[Path], port: int = 0) -> ThreadingHTTPServer:
    """A server of the live page on this machine's loopback; `serve_forever` and `shutdown` are the caller's."""
    for folder in folders:
        run_folders(folder)  # one without runs is an error now, not in the browser
    handler = type("Handler", (_Handler,), {"page": LivePage(folders)})
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise UsageError(f"--port {port} cannot be served: {error.strerror}; give another one, or 0 for any") from error
