"""Checks every kind of page that Paceline writes, and the site, with axe-core in headless Chromium.

    npm install axe-core        # anywhere; the file that is needed is node_modules/axe-core/axe.min.js
    make docs                   # the site, in site/
    python benchmarks/accessibility/run.py AXE_MIN_JS [--site site] [--only NAME]

Each page is opened 1,400 and 390 pixels wide, light and dark, with everything unfolded; those of the site in two of the
four views. All rules of axe-core apply, best practices included. A browser for each view opens one page after the
other in a frame.
"""

from __future__ import annotations

import argparse
import http.server
import json
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from record import write

HERE = Path(__file__).parent
Rows = dict[str, dict[str, dict[str, Any]]]  # by page and view
VIEWS = {"wide, light": (1400, 0), "wide, dark": (1400, 1), "narrow, light": (390, 0), "narrow, dark": (390, 1)}
OF_SITE = ("wide, light", "narrow, dark")  # every page of the site is opened in these two
SPACE = "lr = {low = 1e-3, high = 1.0, log = true}\nbatch_size = {choices = [50, 100]}\n"
#: Each kind of page and the command that writes it.
PAGES = {
    "a run": "train digits --plan downpour --workers 2 --epochs 4 --runs run --quiet",
    "a comparison": "compare digits --plans sequential,ring,downpour --workers 2 --seconds 6 --runs compared --quiet",
    "many runs": "report run compared -o many.html",
    "a tuning": "tune digits --space space.toml --search random --budget 6 --max-t 3 --runs tuned --quiet",
    "a choice of the planner": "choose digits --page choice.html --quiet",
    "a check of the planner": "validate digits --plans sequential,ring --rounds 2 --page check.html --quiet",
    "a drawn pipeline": "draw gpipe --workers 3 --page drawn.html",
}
HARNESS = """<!doctype html><html lang="en"><title>audit</title><body><script>
const told = rules => rules.map(rule => ({rule: rule.id, impact: rule.impact, where: rule.nodes.length,
  first: rule.nodes.slice(0, 3).map(node => node.target.join(" ") + ": " + (node.failureSummary || ""))}));
async function audit(axe, address, width) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 1000;
  const loaded = new Promise(done => { frame.onload = done; });
  frame.src = address;
  document.body.append(frame);
  await loaded;
  const inside = frame.contentWindow;
  for (const each of inside.document.querySelectorAll("details")) each.open = true;
  await new Promise(done => setTimeout(done, 300));
  inside.eval(axe);
  const found = await inside.axe.run(inside.document, {resultTypes: ["violations", "passes", "incomplete"]});
  frame.remove();
  return {version: found.testEngine.version, violations: told(found.violations), incomplete: told(found.incomplete),
    passes: found.passes.length};
}
async function all() {
  const axe = await (await fetch("/axe")).text();
  for (const [address, width] of %s) {
    let found;
    try { found = await audit(axe, address, width); } catch (error) { found = {error: String(error)}; }
    await fetch("/found", {method: "POST", body: JSON.stringify(found)});
  }
}
all();
</script></body></html>"""
PATIENCE = 300  # seconds for one page
POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy"[^>]*>')  # would keep axe-core out


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, axe-core and the page that opens all others; takes what is found."""

    def __init__(self, *about: Any, texts: dict[str, str], found: queue.Queue[dict[str, Any]], **more: Any) -> None:
        self.texts, self.found = texts, found
        super().__init__(*about, **more)

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.path in self.texts:
            self._answer(self.texts[self.path].encode())
        elif path.suffix == ".html" and path.is_file():
            self._answer(POLICY.sub(b"", path.read_bytes()))
        else:
            super().do_GET()

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer(b"")

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def audits(chromium: str, axe: str, root: Path, pages: Sequence[Path], dark: bool, width: int) -> Iterator[Any]:
    """Open pages below a folder in one browser; yield what axe-core finds on each."""
    addresses = [[f"/{page.relative_to(root).as_posix()}", width] for page in pages]
    texts, found = {"/axe": axe, "/all": HARNESS % json.dumps(addresses)}, queue.Queue[dict[str, Any]]()
    handler = partial(Handler, directory=str(root), texts=texts, found=found)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1500,1100",
            "--remote-debugging-port=0",
        ]
        options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        address = f"http://127.0.0.1:{server.server_port}/all"
        with tempfile.TemporaryDirectory() as profile:
            browser = subprocess.Popen(
                [chromium, *options, f"--user-data-dir={profile}", address], stderr=subprocess.DEVNULL
            )
            try:
                for _ in pages:
                    yield found.get(timeout=PATIENCE)
            finally:
                browser.terminate()
                browser.wait()
                server.shutdown()


def written(folder: Path) -> Iterator[tuple[str, Path]]:
    """Let Paceline write its pages; yield the name of each and its file."""
    (folder / "space.toml").write_text(SPACE)
    for name, command in PAGES.items():
        before = set(folder.rglob("*.html"))
        _paceline(folder, *command.split())
        if name == "a run":
            (run,) = (folder / "run").iterdir()
            _paceline(folder, "report", str(run))
        (page,) = set(folder.rglob("*.html")) - before
        yield name, page


def _paceline(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "paceline", *words], cwd=folder, check=True, capture_output=True)


def audited(chromium: str, axe: str, root: Path, pages: Sequence[tuple[str, Path]], views: Sequence[str]) -> Rows:
    """Audit pages below a folder in some views, and print what is wrong."""
    rows: Rows = {}
    for view in views:
        width, dark = VIEWS[view]
        found = audits(chromium, axe, root, [page for _, page in pages], bool(dark), width)
        for (name, _), each in zip(pages, found, strict=True):
            if "error" in each:
                raise RuntimeError(f"axe-core did not answer on {name}: {each['error']}")
            rows.setdefault(name, {})[view] = each
            print(f"{name}, {view}: {len(each['violations'])} violations, {each['passes']} passes", flush=True)
            for rule in each["violations"]:
                title = f"    {rule['rule']} ({rule['impact']}), {rule['where']} places:"
                print(title, *rule["first"], sep="\n        ")
    return rows


def main() -> None:
    """Audit all pages in all views; write result.json and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axe", type=Path)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--only", default="", help="audit only pages whose name contains this, and write nothing")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    axe, rows = chosen.axe.read_text(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not chosen.only.startswith("site"):
            own = [each for each in written(folder) if chosen.only in each[0]]
            rows |= audited(chromium, axe, folder, own, [*VIEWS])
        if chosen.site:
            site = Path(shutil.copytree(chosen.site, folder / "site"))
            pages = [(f"site: {page.relative_to(site)}", page) for page in sorted(site.rglob("*.html"))]
            rows |= audited(chromium, axe, site, [each for each in pages if chosen.only in each[0]], OF_SITE)
    if not chosen.only:
        found = [each for views in rows.values() for each in views.values()]
        totals = {"pages": len(rows), "violations": sum(len(each["violations"]) for each in found)}
        command = "python benchmarks/accessibility/run.py axe.min.js --site site"
        write(HERE, {"command": command, "axe-core": found[0]["version"], **totals, "found": rows})


if __name__ == "__main__":
    main()
