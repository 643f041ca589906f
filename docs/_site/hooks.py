"""The site is the repository's own pages: mkdocs calls these functions while it builds.

README, CONTRIBUTING, CHANGELOG and the benchmarks' pages join docs/ where they lie. A link to another page leads to it;
one to a source file becomes its name. Where a page has a mark such as `<!-- generated: commands -->`, the reference
follows, written from the code. Every page has a Markdown twin, and llms.txt lists them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from llms import index  # noqa: E402
from reference import PARTS, rule_pages, tomllib  # noqa: E402

from paceline.runtime.runs.json_schema import FILES, json_schema  # noqa: E402

PICTURE = re.compile(r"(?<=\]\()docs/(pictures/[^)\s]+)")
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
#: The Markdown of each page, as the site has it.
TWINS: dict[str, str] = {}
SECTIONS: list[tuple[str, list[tuple[str, str]]]] = []


def places() -> dict[str, str]:
    """Where each of the repository's pages lies in the site."""
    found = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
    for path in (ROOT / "docs").rglob("*.md"):
        place = path.relative_to(ROOT / "docs").as_posix()
        found[f"docs/{place}"] = place
    found["benchmarks/README.md"] = "benchmarks/index.md"
    for path in (ROOT / "benchmarks").glob("*/README.md"):
        found[f"benchmarks/{path.parent.name}/README.md"] = f"benchmarks/{path.parent.name}.md"
    return found


PLACES = places()
SOURCES = {place: source for source, place in PLACES.items()}


def on_config(config: Any) -> Any:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_url = project["urls"]["Documentation"]
    return config


def on_files(files: Any, config: Any) -> Any:
    for source, place in PLACES.items():
        if not source.startswith("docs/"):
            files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for picture in (ROOT / "benchmarks").glob("*/*.svg"):
        files.append(File.generated(config, f"benchmarks/{picture.name}", content=picture.read_text()))
    for place, text in rule_pages().items():
        files.append(File.generated(config, place, content=text))
    return files


def on_nav(nav: Any, **_: Any) -> Any:
    SECTIONS[:] = [
        (section.title, [(page.title, page.file.src_uri) for page in section.children if page.is_page])
        for section in nav.items
        if section.is_section
    ]
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    place = page.file.src_uri
    source = SOURCES.get(place, f"docs/{place}")
    if source == "README.md":
        markdown = PICTURE.sub(r"\1", markdown)
    markdown = MARK.sub(lambda mark: PARTS[mark[1]](), markdown)
    parts = re.split(r"(```.*?```)", markdown, flags=re.S)  # what is in a block of code stays
    TWINS[place] = "".join(
        part if part.startswith("```") else LINK.sub(lambda m: link(m, source, place), part) for part in parts
    )
    return TWINS[place]


def link(found: re.Match[str], source: str, place: str) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if not target or "://" in target:
        return found[0]
    meant = normpath(str(PurePosixPath(source).parent / target))
    if meant in PLACES:
        return f"[{text}]({relpath(PLACES[meant], str(PurePosixPath(place).parent))}{anchor})"
    if target.startswith("rules/"):
        return found[0]
    assert (ROOT / meant).exists(), f"{source} links to {target}, which is not there"
    return text


def on_post_build(config: Any, **_: Any) -> None:
    site = Path(config["site_dir"])
    for place, markdown in TWINS.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(markdown)
    (site / "schemas").mkdir(exist_ok=True)
    for name in FILES:
        (site / "schemas" / f"{name}.json").write_text(json.dumps(json_schema(name), indent=1))
    (site / "llms.txt").write_text(index(config["site_name"], config["site_description"], SECTIONS, TWINS))


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
    page = re.sub(r"<pre([^>]*)><code", r'<pre\1><code tabindex="0"', page)
    return re.sub(r"<th( [^>]*)?></th>", r"<td\1></td>", page)
