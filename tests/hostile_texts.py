"""Texts that break out of a page or of a terminal where they are not escaped, and what shows that they did not."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import groupby
from typing import Any

SCRIPT = "</title></script></style><script>alert(1)</script><img src=x onerror=alert(1)>"
QUOTES = "\"'><svg/onload=alert(1)><a href=javascript:alert(1)>"
TERMINAL = "\x1b]0;owned\x07\x1b[2J\x1b[1A\x9b31m\r\x08\u202e\u2028[/bold][link=file:///etc/passwd]"
#: As a job, a layer, a metric or a file may be called.
NASTY = f"{SCRIPT}{QUOTES}{TERMINAL}\n\udcff{{}}%s"
#: Elements that pages are made of.
ELEMENTS = re.findall(
    r"\w+",
    "html head meta title style body main header h1 h2 h3 h4 p section footer script div span figure figcaption small "
    "svg path circle rect line text i b u s q em code pre ul li dl dt dd table caption thead tbody tfoot tr th td "
    "details summary output input label",
)


class _Harmless(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.scripts = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        self.scripts += tag == "script"
        for name, value in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "href", "action", "formaction", "srcdoc", "xlink:href"), (tag, name)
            if name == "style":
                assert re.fullmatch(r"[\w\s:;.,%()#/+-]*", value or ""), value


def harmless(page: str, scripts: int = 1) -> None:
    """Assert that a page holds no element, script or attribute but its own."""
    assert _Harmless(page).scripts == scripts
    page.encode()  # no halves of characters, which no file can hold


def shown_safely(text: str) -> None:
    """Assert that a text does nothing to a terminal: of escape sequences, it has none but colours of its own."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", plain), ascii(plain)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the places of all texts in JSON."""
    if isinstance(value, str):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in items for place in leaves(each, (*path, key))]


def spoiled(value: Any, refused: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield copies of JSON in which every text is `NASTY` once, but for those that are refused alone.

    The texts under one key are spoiled together, unless that is refused: then by halves.
    """
    for _, places in groupby(leaves(value), lambda place: place[0]):
        yield from _spoiled(value, list(places), refused)


def _spoiled(value: Any, places: list[tuple[Any, ...]], refused: Callable[[Any], bool]) -> Iterator[Any]:
    spoiled = copy.deepcopy(value)
    for *path, last in places:
        inner = spoiled
        for key in path:
            inner = inner[key]
        inner[last] = NASTY
    if not refused(spoiled):
        yield spoiled
    elif len(places) > 1:
        middle = len(places) // 2
        yield from _spoiled(value, places[:middle], refused)
        yield from _spoiled(value, places[middle:], refused)
