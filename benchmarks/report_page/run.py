"""What a page weighs, how long it takes to make and to open, and whether a browser has anything to complain of."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import paceline as pl
from paceline.runtime.report import write as write_report

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import write

PLANS = ("sequential", "ring", "downpour", "ssp", "dc_asgd", "local_sgd", "easgd", "ddp")
UPDATES, RUNS = 10_000, 200
HELD = 4.0  # seconds
# Appended to a page to time it in the browser: until it is drawn, sorting, looking closely at the first timeline.
PROBE = """<script>requestAnimationFrame(() => setTimeout(async () => {
  const told = {opened: performance.now()}, head = document.querySelector("table.runs th:nth-child(3) button");
  let from = performance.now();
  head.click();
  document.body.offsetHeight;
  told.sorted = performance.now() - from;
  const part = document.querySelector("details");
  if (part) {
    part.open = true;
    const one = new Timeline(part.querySelector(".timeline"));
    from = performance.now();
    await one.show(one.end * .4, one.end * .5);
    told.zoomed = performance.now() - from;
  }
  console.log("PROBE " + JSON.stringify(told));
}, 0));</script>"""


def job() -> pl.Job:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 20, generator=chance)
    y = (x[:, :5].sum(1) > 0).long()
    return pl.Job(
        model=lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 2)), data=(x, y), test=(x, y),
        loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.05), batch_size=20, epochs=100,
        evaluate_every=1000, name="small",
    )  # fmt: skip


def measured(runs: Path, page: Path) -> dict[str, Any]:
    begun = time.perf_counter()
    write_report([runs], page)
    seconds = time.perf_counter() - begun
    text = page.read_text()
    outside = re.findall(r"""(?:src|href|action)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", text)
    return {
        "megabytes": round(page.stat().st_size / 1e6, 3),
        "seconds_to_make": round(seconds, 2),
        "references_to_elsewhere": len(outside),
        **in_browser(page),
    }


class Slow(http.server.BaseHTTPRequestHandler):
    """Serves a page and holds its end back, so that a headless browser stays until the probe has told its figures."""

    page = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        if self.path == "/page":
            self.wfile.write(self.page)
            self.wfile.flush()
            time.sleep(HELD)

    def log_message(self, *_: Any) -> None:
        pass


def in_browser(page: Path) -> dict[str, Any]:
    """Milliseconds, medians of five; and what the console said."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        return {"browser": "none found: not measured"}
    Slow.page = page.read_text().replace("</body></html>", PROBE).encode()
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--v=0",
        "--window-size=1280,2000",
    ]
    found, said = [], []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(5):
            command = [chromium, *options, "--dump-dom", f"http://127.0.0.1:{server.server_port}/page"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            lines = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
            said += [line for line in lines if "PROBE" not in line]
            found += [json.loads(told[1]) for line in lines if (told := re.search(r"PROBE (\{.*?\})", line))]
        server.shutdown()
    names = {name for told in found for name in told}
    times = {f"{name}_ms": round(statistics.median(told[name] for told in found), 1) for name in sorted(names)}
    return {**times, "answers": len(found), "console_lines": len(said)}


def main() -> None:
    warnings.simplefilter("ignore")
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder)
        for plan in PLANS:
            if not (runs / "eight" / plan).exists():
                pl.train(job(), plan, workers=None if plan == "sequential" else 2, folder=runs / "eight" / plan)
        figures[f"{len(PLANS)} runs of {UPDATES} updates"] = measured(runs / "eight", runs / "eight.html")
        print(figures, flush=True)
        short = job().with_(epochs=3)
        for number in range(RUNS):
            plan, seed = PLANS[number % 5], number // 5
            if not (runs / "many" / f"{number}").exists():
                pl.train(
                    short.with_(seed=seed), plan, workers=None if plan == "sequential" else 2, engine="virtual",
                    folder=runs / "many" / f"{number}",
                )  # fmt: skip
        figures[f"{RUNS} runs of 300 updates"] = measured(runs / "many", runs / "many.html")
        print(figures, flush=True)
    write(figures)


if __name__ == "__main__":
    main()
