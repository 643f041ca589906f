from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.interfaces.emit import names

ODD = st.one_of(st.text("aZ09-_. /:'\"\\é\u202e", max_size=90), st.text(max_size=20))


@settings(max_examples=100)
@given(ODD)
def test_any_text_has_a_label(text: str) -> None:
    """Names of pods, Services and volumes are made of it, each with something appended."""
    label = names.label(text)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", label)
    assert len(label) <= names.LONGEST_NAME
    assert names.label(label) == label


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ("digits", "digits"),
        ("a/b/My_Net.py", "my-net"),
        ("net.py:large", "net-large"),
        ("3d cnn's.py", "job-3d-cnn-s"),
        ("Müller.py", "muller"),
        ("训练.py", "job"),
        ("x" * 60 + ".py", "x" * 47),
    ],
)
def test_names_of_jobs(job: str, name: str) -> None:
    assert names.job_name(job) == name


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (names.namespace, ["team", "a-1", "1"], ["Team", "-a", "a_b", "a" * 64, "a\nb: c"]),
        (names.image, ["digits:1", "example.org:5000/team/digits@sha256:0a"], ["-x", "a b", "a\n", "é"]),
        (names.partition, ["gpu", "gpu,long_2"], ["gpu long", "a\nb", "x;y"]),
        (names.time_limit, ["90", "90:00", "1:30:00", "2-12", "2-12:00:00"], ["1h", "1:2:3:4", "-5", "1-", "1:00\n2"]),
    ],
)
def test_what_other_programs_would_refuse(check: Callable[[str], str], good: list[str], bad: list[str]) -> None:
    assert [check(text) for text in good] == good
    for text in bad:
        with pytest.raises(UsageError):
            check(text)
