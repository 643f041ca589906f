"""No name leaves the comment, the identifier or the folder that it enters."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import paceline
from paceline.names import comment, file_name, identifiers
from paceline.runtime.runs.record import new_folder

#: What `add_module`, a job's `name=` and a TOML file accept.
HOSTILE = [
    "a\nint x;\n//", "a\rb", "*/ int x; /*", "*??/\n/ int x;", "tail\\", "tail??/", "a/b", "../../x", "/etc/x", "..",
    ".", "-rf", "nul\0x", "x" * 5000, "sep\u2028x\u2029\x85", "\udcff", "日本" * 300, "²", "%s{0}", "'\"`$(id)", "",
    " ", "\t\x1b[2J",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_where_it_is_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    assert re.fullmatch(r"[\w .,:;=+*%()<>\[\]-]{0,300}", comment(f"{name} *"), re.ASCII)
    file = file_name(name)
    assert len(file.encode()) <= 200
    assert (tmp_path / file).parent == tmp_path
    assert re.fullmatch(r"\w[\w.-]*", file) or file == "unnamed"
    assert new_folder(tmp_path / "runs", f"{name}-ring").parent == tmp_path / "runs"


def test_names_that_are_usual_stay_as_they_are() -> None:
    assert comment("0.weight[o][i] += d_x[2 * i - 1]") == "0.weight[o][i] += d_x[2 * i - 1]"
    assert file_name("digits-ring.2_x") == "digits-ring.2_x"
    assert file_name("lernen-größer") == "lernen-größer"
    assert file_name("a" * 200 + "-comparison").endswith("-comparison")


def test_different_names_are_different_identifiers() -> None:
    names = ["a.b", "a_b", "a b", "a_b_", "é", "è", *HOSTILE]
    found = identifiers(names)
    assert len(set(found.values())) == len(set(names))
    assert all(re.fullmatch(r"[A-Za-z0-9_]*", word) for word in found.values())
    assert found["a.b"] == "a_b"


def test_what_enters_a_comment_of_generated_code_is_cleaned() -> None:
    """In every text from which a comment of C or C++ is made, but for numbers in a format."""
    source = Path(paceline.__file__).parent
    found = [
        inside
        for part in ("kernels", "compression")
        for file in (source / part).rglob("*.py")
        for inside in re.findall(r"f[\"'].*?(?:/\*|//) ?\{(.*?)\}", file.read_text())
    ]
    assert len(found) >= 5
    assert all(each.startswith("comment(") or re.fullmatch(r"\w+:\.\dg", each) for each in found), found
