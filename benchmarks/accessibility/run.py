"""Checks every kind of page that Paceline writes, and the site, with axe-core in headless Chromium.

    npm install axe-core        # anywhere; the file that is needed is node_modules/axe-core/axe.min.js
    make docs                   # the site, in site/
    python benchmarks/accessibility/run.py AXE_MIN_JS [--site site] [--only WORDS]

Each page is opened 1,400 and 390 pixels wide, light and dark, with everything unfolded; those of the site in two of the
four views. All rules of axe-core apply, those called best practices too. `--only "a run"` or `--only "site: d"` audits
the pages whose names begin with these words, and keeps the rows of the others.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.server
import itertools
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

from harness import read, write

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
    "a tuning": "tune digits --space space.toml --search random --n-trials 6 --max-t 3 --runs tuned --quiet",
    "a choice of the planner": "choose digits --page choice.html --quiet",
}
PROBE = """<script>%s</script><script>
for (const each of document.querySelectorAll("details")) each.open = true;
axe.run(document, {resultTypes: ["violations", "passes", "incomplete"]}).then(found => {
  const told = kind => found[kind].map(rule => ({rule: rule.id, impact: rule.impact, where: rule.nodes.length,
    first: rule.nodes.slice(0, 3).map(node => node.target.join(" ") + ": " + (node.failureSummary || ""))}));
  const pre = document.createElement("pre");
  pre.id = "axe-found";
  const all = {version: axe.version, violations: told("violations"), incomplete: told("incomplete"),
    passes: found.passes.length};
  pre.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(all))));
  document.body.append(pre);
});
</script></body>"""


def audit(chromium: str, axe: str, page: Path, address: str, view: tuple[int, int]) -> dict[str, Any]:
    """Return what axe-core finds on a page at an address. A copy beside it, which allows scripts, is opened."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    copy = page.with_name(f"audit-{page.name}")
    copy.write_text(text.replace("</body>", PROBE.replace("%s", axe.replace("</script", "<\\/script")), 1))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=120000"]
    options += [f"--window-size={view[0]},1000", f"--blink-settings=preferredColorScheme={0 if view[1] else 1}"]
    done = subprocess.run(
        [chromium, *options, "--dump-dom", f"{address}/{copy.name}"], capture_output=True, timeout=180
    )
    copy.unlink()
    found = re.search(rb'<pre id="axe-found">([^<]+)</pre>', done.stdout)
    if found is None:
        raise RuntimeError(f"axe-core did not answer on {page}")
    told: dict[str, Any] = json.loads(base64.b64decode(found[1]))
    return told


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; yield its address."""
    handler = partial(Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Silent(http.server.SimpleHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


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


def audited(chromium: str, axe: str, root: Path, pages: Iterable[tuple[str, Path]], views: Sequence[str]) -> Rows:
    """Audit pages below a folder in some views, and print what is wrong."""
    rows: Rows = {}
    with served(root) as address:
        for (name, page), view in itertools.product(list(pages), views):
            folder = page.parent.relative_to(root).as_posix()
            found = audit(chromium, axe, page, f"{address}/{folder}", VIEWS[view])
            rows.setdefault(name, {})[view] = found
            print(f"{name}, {view}: {len(found['violations'])} violations, {found['passes']} passes", flush=True)
            for rule in found["violations"]:
                title = f"    {rule['rule']} ({rule['impact']}), {rule['where']} places:"
                print(title, *rule["first"], sep="\n        ")
    return rows


def main() -> None:
    """Audit all pages in all views; write result.json and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axe", type=Path)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--only", default="", help="audit only pages whose name begins with this; the others keep rows")
    chosen = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    axe, rows = chosen.axe.read_text(), {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not chosen.only.startswith("site"):
            own = [each for each in written(folder) if each[0].startswith(chosen.only)]
            rows |= audited(chromium, axe, folder, own, [*VIEWS])
        if chosen.site:
            site = Path(shutil.copytree(chosen.site, folder / "site"))
            pages = [(f"site: {page.relative_to(site)}", page) for page in sorted(site.rglob("*.html"))]
            rows |= audited(chromium, axe, site, (each for each in pages if each[0].startswith(chosen.only)), OF_SITE)
    if chosen.only:
        rows = read()["found"] | rows
    found = [each for views in rows.values() for each in views.values()]
    totals = {"pages": len(rows), "violations": sum(len(each["violations"]) for each in found)}
    command = "python benchmarks/accessibility/run.py axe.min.js --site site"
    write({"command": command, **totals, "found": dict(sorted(rows.items()))})


if __name__ == "__main__":
    main()
