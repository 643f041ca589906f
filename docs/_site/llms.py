"""llms.txt, the list of pages for programs that read: title, address of the Markdown, and what the page begins with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
LENGTH = 200


def index(
    name: str, description: str, sections: Iterable[tuple[str, Iterable[tuple[str, str]]]], pages: Mapping[str, str]
) -> str:
    """Return the text of llms.txt for the sections of the navigation: their pages' titles and places."""
    lines = [f"# {name}", "", f"> {description}", ""]
    for section, entries in sections:
        lines += [f"## {section}", ""]
        lines += [f"- [{title}]({place}): {summary(pages[place])}" for title, place in entries]
        lines.append("")
    return "\n".join(lines)


def summary(markdown: str) -> str:
    """Return the first sentences of a page's first paragraph, about two lines of them."""
    blocks = re.split(r"\n\s*\n", re.sub(r"<!--.*?-->", "", markdown, flags=re.S).strip())
    paragraph = next(each.strip() for each in blocks if re.match(r"(?!```)[\w*`\[\"]", each.strip()))
    text = LINK.sub(r"\1", " ".join(paragraph.split()))
    first, *others = re.split(r"(?<=[.?!])\s", text)
    for sentence in others:
        if len(first) + len(sentence) > LENGTH:
            break
        first += f" {sentence}"
    return first.rstrip(":")
