"""The site is the repository's own pages: mkdocs calls these functions while it builds.

README, CONTRIBUTING, CHANGELOG and the benchmarks' pages join docs/ where they lie. A link to another page leads to it;
one to a source file becomes its name. The reference is written from the code.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from reference import commands, errors, messages, plans, python  # noqa: E402

PICTURE = re.compile(r"(?<=\]\()docs/(pictures/[^)\s]+)")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
GENERATED = {
    "reference/python.md": python,
    "reference/commands.md": commands,
    "reference/plans.md": plans,
    "reference/messages.md": messages,
    "reference/errors.md": errors,
}


def places() -> dict[str, str]:
    """Where each of the repository's pages lies in the site."""
    found = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
    found |= {f"docs/{path.name}": path.name for path in (ROOT / "docs").glob("*.md")}
    tutorials = [f"tutorials/{path.name}" for path in (ROOT / "docs" / "tutorials").glob("*.py")]
    found |= {f"docs/{place}": place for place in tutorials}
    found["benchmarks/README.md"] = "benchmarks/index.md"
    for path in (ROOT / "benchmarks").glob("*/README.md"):
        found[f"benchmarks/{path.parent.name}/README.md"] = f"benchmarks/{path.parent.name}.md"
    return found


PLACES = places()
SOURCES = {place: source for source, place in PLACES.items()}


def on_files(files: Any, config: Any) -> Any:
    for source, place in PLACES.items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for picture in (ROOT / "benchmarks").glob("*/*.svg"):
        files.append(File.generated(config, f"benchmarks/{picture.name}", content=picture.read_text()))
    for place, write in GENERATED.items():
        files.append(File.generated(config, place, content=write()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    place = page.file.src_uri
    source = SOURCES.get(place, f"docs/{place}")
    if source == "README.md":
        markdown = PICTURE.sub(r"\1", markdown)
    parts = re.split(r"(```.*?```)", markdown, flags=re.S)  # what is in a block of code stays
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda m: link(m, source, place), part) for part in parts
    )


def link(found: re.Match[str], source: str, place: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if not target or "://" in target:
        return found[0]
    meant = normpath(str(PurePosixPath(source).parent / target))
    if meant in PLACES:
        return f"[{text}]({relpath(PLACES[meant], str(PurePosixPath(place).parent))}{anchor})"
    if normpath(str(PurePosixPath(place).parent / target)) in GENERATED:
        return found[0]
    assert (ROOT / meant).exists(), f"{source} links to {target}, which is not there"
    return text


def on_post_page(output: str, **_: Any) -> str:
    return accessible(output)


def on_post_template(output_content: str, **_: Any) -> str:
    return accessible(output_content)  # of the page for addresses that do not exist


def accessible(page: str) -> str:
    """Let the keyboard scroll code and tables, leave no header of a table empty, and name lists of contents."""
    page = page.replace("<table>", '<table tabindex="0">')
    # A heading may have the name of a group of pages, and its list that of the group's.
    page = re.sub(r'(<nav class="md-nav" aria-label=")', r"\1Contents of ", page)
    page = page.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    page = page.replace('<div class="highlight-ipynb', '<div tabindex="0" class="highlight-ipynb')
    page = re.sub(r"<pre([^>]*)><code", r'<pre\1><code tabindex="0"', page)
    return re.sub(r"<th( [^>]*)?></th>", r"<td\1></td>", page)
