"""Rewrite the pictures of plans in docs as `paceline draw` prints them now: python docs/_site/pictures.py"""

from __future__ import annotations

import re
from pathlib import Path

from paceline.planning.explain.drawing import draw
from paceline.plans.plan import Plan

PICTURE = re.compile(r"(<!-- draw: (.*?) -->\n```text\n).*?```", re.S)

for page in Path(__file__).parents[1].rglob("*.md"):
    before = page.read_text()
    after = PICTURE.sub(lambda found: f"{found[1]}{draw(Plan.parse(found[2]))}\n```", before)
    if after != before:
        page.write_text(after)
        print(f"rewritten: {page.name}")
