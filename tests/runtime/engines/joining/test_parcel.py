"""What travels to a machine that joins: modules beside the job, files that it opens, and nothing else."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline.errors import FrameError, JobError
from paceline.runtime.engines.joining import parcel as parcel_module
from paceline.runtime.engines.joining.parcel import (
    Package,
    Parcel,
    different,
    imported_packages,
    lacking,
    python,
    receive_parcel,
)
from paceline.runtime.links.pairing.exchange import Line

#: Opens files in several ways, and says what would travel.
PROGRAM = """
import json, os, sys
from pathlib import Path

from paceline.runtime.engines.joining.parcel import opened, watch_files

watch_files()
import beside
open("data/one.csv").read()
list(os.scandir("images"))
Path("/etc/hostname").exists() and open("/etc/hostname").read()
open(".secret").read()
open("written.txt", "w").close()
open(sys.argv[1]).read()
print(json.dumps([str(each) for each in opened()]))
open("data/two.csv").read()
print(json.dumps([str(each) for each in opened()]))
"""


def test_the_files_that_a_program_reads_are_known_and_no_others(tmp_path: Path) -> None:
    for name in ("data/one.csv", "data/two.csv", "images/a.png", "images/b.png", "beside.py", ".secret", "unread.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere.csv"
    elsewhere.write_text("")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, elsewhere], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    expected = [str(elsewhere), *(str(tmp_path / name) for name in ("data/one.csv", "images/a.png", "images/b.png"))]
    first, second = map(json.loads, ended.stdout.splitlines())
    assert sorted(first) == sorted(second) == sorted(expected)


def test_a_parcel_arrives_as_it_was_sent(tmp_path: Path) -> None:
    source, target = tmp_path / "from", tmp_path / "to"
    source.mkdir()
    target.mkdir()
    (source / "a.csv").write_bytes(b"1,2\n")
    (source / "empty").write_bytes(b"")
    big = os.urandom((1 << 20) + 17)
    parcel = Parcel({"data/a.csv": source / "a.csv", "empty": source / "empty"}, job=big)
    shown: list[tuple[int, int]] = []
    a, b = socket.socketpair()
    with a, b:
        thread = threading.Thread(target=parcel.send, args=(Line(a, "bob", 20.0),))
        thread.start()
        line = Line(b, "alice", 20.0)
        assert receive_parcel(line, target, lambda *each: shown.append(each)) == big
        thread.join(20)
    assert (target / "data" / "a.csv").read_bytes() == b"1,2\n"
    assert (target / "empty").read_bytes() == b""
    assert shown[-1] == (parcel.bytes, parcel.bytes)
    assert line.received - parcel.bytes < 1000


@pytest.mark.parametrize("place", ["/etc/cron.d/x", "../x", "a/../../x", "a\0b"])
def test_no_file_of_a_parcel_leaves_its_folder(place: str, tmp_path: Path) -> None:
    a, b = socket.socketpair()
    with a, b:
        sender = Line(a, "bob", 20.0)
        sender.send_json({"parts": 1, "bytes": 1})
        sender.send_json({"place": place, "bytes": 1})
        sender.send(b"x")
        with pytest.raises(FrameError, match="outside of the job"):
            receive_parcel(Line(b, "alice", 20.0), tmp_path, lambda come, total: None)
    assert not list(tmp_path.iterdir())


def test_more_than_the_limit_is_refused_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcel_module, "MOST", 1 << 20)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large.bin").write_bytes(bytes(2 << 20))
    with pytest.raises(JobError, match="at most 1 MB"):
        Parcel.of([tmp_path / "large.bin"], b"")


def test_packages_that_a_job_imports_are_compared(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import numpy as np\nfrom torch.nn import Linear\nimport os, no_such_module\n")
    packages = imported_packages([tmp_path / "job.py"])
    assert [each.module for each in packages] == ["numpy", "paceline", "torch"]
    assert lacking(packages, python(), "alice") == []
    assert different(packages) == []
    assert lacking([], "2.7", "alice") == [f"Python 2.7 is needed, as alice has it, and this is Python {python()}"]
    missing = Package("no_such_module", "no-such", "1.2+cpu")
    assert lacking([missing], python(), "alice") == ["no_such_module is not installed here: pip install no-such==1.2"]
    (line,) = lacking([Package("torch", "torch", "1.0")], python(), "alice")
    assert line.startswith("torch is ")
    assert "and 1.0 on alice: pip install torch==1.0" in line
    (line,) = different([Package("numpy", "numpy", "0.1")])
    assert line.startswith("numpy ")
    assert line.endswith("(there 0.1)")
