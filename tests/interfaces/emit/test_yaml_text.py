from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.interfaces.emit.yaml_text import documents

#: Texts that YAML's readers take for something else, if they are not quoted.
TRAPS = [
    "", " ", "yes", "No", "on", "null", "~", "true", "1", "1.5", "0x1f", "1e3", "1_000", "12:30:45", "2026-01-01",
    ".inf", "-", "- a", "a: b", "a #b", "#a", "&a", "*a", "!a", "%a", "@a", "`a`", "'a'", '"a"', "{a}", "[a]", "a\\b",
    "a\tb", "a\n", "a\nb\n", "\na\n", " a\nb\n", "a\n\n", "a\n\nb\n", "a\r\nb\n", "a \n b\n", "\u2028\n", "\ufeffa",
    "é", "训练", "\U0001f600", "\x7f", "\x85", "=", "<<", "?", "|", ">", "a:", ":a", "10Gi", "host:29471", "y",
]  # fmt: skip
TEXTS = st.one_of(st.sampled_from(TRAPS), st.text(max_size=12), st.text("a \n:#-'\"\\\t|", max_size=12))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(TEXTS, st.integers(-(10**9), 10**9), st.booleans()),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(TEXTS, part, max_size=3)),
    max_leaves=12,
)


@pytest.mark.parametrize("text", TRAPS)
def test_a_text_comes_back_as_it_was(text: str) -> None:
    """As a value, as a key, in a list, and in a mapping in a list."""
    value = {"value": text, text: 1, "list": [text, [text], {"key": text}], "map": {"inner": text}}
    assert yaml.safe_load(documents([value])) == value


@settings(max_examples=100)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_anything_comes_back_as_it_was(values: list[Any]) -> None:
    assert list(yaml.safe_load_all(documents(values, ["a comment"]))) == values


def test_a_text_of_several_lines_is_a_block() -> None:
    assert documents([{"a": {"run": "if x; then\n\n    y\nfi\n"}}]) == (
        "a:\n  run: |\n    if x; then\n\n        y\n    fi\n"
    )
