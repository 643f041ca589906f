"""The newest instruction set that may compute is set before PyTorch is imported, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline import instruction_sets
from paceline.errors import UsageError
from paceline.instruction_sets import ALL, VARIABLE, limit, max_cpu_isa, processor_flags
from paceline.kernels import build
from tests.runtime.engines.cluster.nodes import free_port


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of this test alone, on a processor that has all there is."""
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name != VARIABLE})
    monkeypatch.setattr(instruction_sets, "processor_flags", lambda: list(ALL["avx512"].flags))


def test_a_process_without_pytorch_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not max_cpu_isa()
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    limit("avx2")
    assert max_cpu_isa() == "avx2"
    assert {name: os.environ[name] for name in ALL["avx2"].variables} == ALL["avx2"].variables


def test_it_is_too_late_once_pytorch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    limit("avx512")
    with pytest.raises(UsageError, match=r"PACELINE_MAX_CPU_ISA=avx512 came after PyTorch .* import paceline before"):
        max_cpu_isa()


@pytest.mark.parametrize(
    ("name", "flags", "says"),
    [
        ("avx3", ALL["avx512"].flags, "'avx3' is no instruction set; did you mean 'avx2'"),
        ("avx512", ALL["avx2"].flags, "this processor has no avx512f, avx512bw"),
    ],
)
def test_what_cannot_be_is_refused(
    name: str, flags: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instruction_sets, "processor_flags", lambda: list(flags))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    limit(name)
    with pytest.raises(UsageError, match=says):
        max_cpu_isa()


def test_generated_code_has_vectors_of_that_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    limit("avx2")
    assert build.abilities.__wrapped__() == "avx2 fma"
    assert build.processor_options() == ("-mavx2", "-mfma")


#: What a processor without AVX-512 would choose.
NARROW = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


@pytest.mark.soak
@pytest.mark.skipif("avx512vl" not in processor_flags(), reason="the nodes are to differ by AVX-512")
def test_nodes_of_different_processors_are_refused_or_limited_to_the_same_instructions(tmp_path: Path) -> None:
    def trained(*options: str) -> list[tuple[int, str, str]]:
        words = ("digits", "--plan", "ring:workers=2,canonical=4", "--engine", "cluster", "--epochs", "1", "--json")
        command = [sys.executable, "-m", "paceline", "train", *words, *options]
        shared = {**os.environ, "PACELINE_NODES": "2", "PACELINE_HEAD": f"127.0.0.1:{free_port()}"}
        nodes = [
            subprocess.Popen(
                [*command, "--runs", str(tmp_path / str(rank))],
                env={**shared, **narrow, "PACELINE_RANK": str(rank)},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank, narrow in enumerate(({}, NARROW))
        ]
        ended = [(*node.communicate(timeout=300), node.returncode) for node in nodes]
        return [(code, out, err) for out, err, code in ended]

    refused = trained()
    assert [code for code, _, _ in refused] == [2, 2], refused
    assert all("set PACELINE_MAX_CPU_ISA=avx2 on all nodes" in " ".join(err.split()) for _, _, err in refused), refused
    limited = trained("--max-cpu-isa", "avx2")
    assert [code for code, _, _ in limited] == [0, 0], limited
    record = json.loads(max((tmp_path / "0").glob("*/run.json")).read_text())
    assert (record["status"], record["machine"]["max_cpu_isa"]) == ("done", "avx2")
