"""Put the blocks of recorded programs into the page of reported hangs, without their advice: `python quote.py DIR`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from traces import HERE, load

PAGE = HERE.parents[1] / "docs" / "reproductions" / "reported-hangs.md"
_SECTION = re.compile(r"(## (\S+)#(\d+)\n.*?```text\n)(.*?)(```)", re.DOTALL)


def block(text: str) -> str:
    """Return a report without time of day, folders and advice."""
    text = re.sub(r"HUNG since [\d:]+", "HUNG since HH:MM:SS", text)
    text = re.sub(r"/\S*/(?:lib/python3\.\d+|site-packages|programs)/(?=\S)", "", text)
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line.startswith("  => ") or line.startswith("  => cause")) + "\n"


def main() -> None:
    """Rewrite the blocks, and say which programs have none."""
    found = {program.name.partition(".")[2]: program.trace.judge() for program in load(Path(sys.argv[1]))}

    def quoted(section: re.Match[str]) -> str:
        name = section[2].partition("/")[2].lower()
        names = [
            each
            for each in found
            if each.endswith(f"_{section[3]}") and each[: each.rindex("_")] in name.replace("-", "_")
        ]
        reports = [found[each] for each in names]
        if not reports or not reports[0]:
            sys.stdout.write(f"no report for {section[2]}#{section[3]}: {names}\n")
            return section[0]
        return section[1] + block(reports[0][0].text()) + section[5]

    PAGE.write_text(_SECTION.sub(quoted, PAGE.read_text()))


if __name__ == "__main__":
    main()
