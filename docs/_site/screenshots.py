"""Take the pictures of docs/pictures: a comparison in the terminal, and its page, wide and narrow, light and dark.

python docs/_site/screenshots.py        needs Chromium; trains for about a minute
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "pictures"
PLANS = "sequential,ddp,ring,downpour"
#: Name of the picture: width and height in pixels, and whether the page is dark.
SHOTS = {
    "comparison-light": (1400, 1000, False),
    "comparison-dark": (1400, 1000, True),
    "comparison-phone": (390, 844, False),
}


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        compare = ["compare", "digits", "--plans", PLANS, "--workers", "2", "--seconds", "12", "--quiet"]
        wide = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "100"}
        run = [sys.executable, "-m", "paceline", *compare]
        printed = subprocess.check_output(run, cwd=folder, env=wide, stderr=subprocess.STDOUT, text=True)
        drawn = draw(printed, Path(folder, "terminal.svg"))
        shoot(browser, drawn, PICTURES / "comparison-terminal.png", 1240, 700, False)
        (page,) = Path(folder).glob("runs/*-comparison/report.html")
        for name, (width, height, dark) in SHOTS.items():
            shoot(browser, page, PICTURES / f"{name}.png", width, height, dark)


def draw(printed: str, picture: Path) -> Path:
    """Draw what a command printed, with its colours, as a window of a terminal."""
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(Text.from_ansi(printed))
    console.save_svg(str(picture), title="paceline compare digits")
    return picture


def shoot(browser: str, page: Path, picture: Path, width: int, height: int, dark: bool) -> None:
    """Take a picture of the top of a page."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000"]
    options += ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
    size = [f"--window-size={width},{height}", f"--screenshot={picture}"]
    subprocess.run([browser, *options, *size, page.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    main()
