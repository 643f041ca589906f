"""States of trials are tensors and plain values: they come back as they were, and reading one runs no code."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.errors import TuningError
from paceline.interfaces.api.tuning.setup import opened_states
from paceline.planning.tuner.state_file import read_state, state_file, write_state

PLAIN: dict[Any, Any] = {
    "a": [1, 2.5, "x", None, True, b"\0\xff"],
    3: (1, (2,), []),
    None: {},
    "inf": -math.inf,
    "": 2**80,
}


def again(state: Any, folder: Path) -> Any:
    file = state_file(folder, 0, 1)
    write_state(file, state)
    assert list(folder.iterdir()) == [file]
    return read_state(file)


def test_plain_values_come_back_with_their_types(tmp_path: Path) -> None:
    got = again(PLAIN, tmp_path)
    assert got == PLAIN
    assert [type(part) for part in got["a"]] == [type(part) for part in PLAIN["a"]]
    assert math.isnan(again(math.nan, tmp_path))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).t(),
        torch.tensor(2.0),
        torch.empty(0, 3),
        torch.arange(4, dtype=torch.bfloat16),
        torch.tensor([True]),
        torch.nn.Parameter(torch.ones(2)),
        torch.randn(5)[::2],
        torch.tensor([1, 2], dtype=torch.int8),
    ],
)
def test_tensors_come_back_bit_for_bit(tensor: torch.Tensor, tmp_path: Path) -> None:
    shared = torch.ones(4)
    got = again({"it": tensor, "one": shared, "other": shared[1:]}, tmp_path)
    assert got["it"].dtype == tensor.dtype
    assert got["it"].shape == tensor.shape
    assert torch.equal(got["it"], tensor.detach())
    assert torch.equal(got["other"], shared[1:])


@pytest.mark.parametrize("beside", [[], [torch.ones(1)]])
@pytest.mark.parametrize("kind", ["<f4", ">f8", "<u4", "<i2", "?"])
def test_arrays_come_back_bit_for_bit(kind: str, beside: list[Any], tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    got = again([array, np.array(1.5), np.float32(0.5), np.int64(7), *beside], tmp_path)
    assert isinstance(got[0], np.ndarray)
    assert (got[0] == array).all()
    assert got[0].shape == (2, 3)
    assert (got[1].shape, got[2], got[3]) == ((), 0.5, 7)


def test_the_state_of_an_optimizer_comes_back(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    got = again({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path)
    optimizer.load_state_dict(got["optimizer"])
    model.load_state_dict(OrderedDict(got["model"]))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ([object()], r"state\[0\] is a object; a state consists of tensors"),
        ({"m": torch.nn.Linear(1, 1)}, r"state\['m'\] is a Linear; .*state_dict\(\)"),
        ({(1, 2): 3}, r"a key \(1, 2\)"),
        (np.array([None]), "state is a ndarray"),
        (torch.eye(2).to_sparse(), "state is a Tensor"),
    ],
)
def test_what_would_have_to_be_pickled_is_refused(state: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(TuningError, match=says):
        write_state(state_file(tmp_path, 0, 1), state)
    assert not list(tmp_path.iterdir())


class Payload:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_no_file_in_place_of_a_state_runs_code(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", state_file(tmp_path, 0, 1)
    write_state(file, {"a": torch.ones(3)})
    whole = file.read_bytes()
    for content in (pickle.dumps(Payload(ran)), b"", whole[:-1], whole[:20], whole.replace(b"tensor", b"tensot")):
        file.write_bytes(content)
        with pytest.raises(TuningError, match="is damaged"):
            read_state(file)
    assert not ran.exists()


def test_a_state_without_tensors_needs_no_pytorch(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from paceline.planning.tuner.state_file import *;"
        "file = Path(sys.argv[1]);"
        "write_state(file, [1, {'a': 2}]); assert read_state(file) == [1, {'a': 2}]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text, str(tmp_path / "x.safetensors")], check=True)


def test_states_of_schema_1_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "0-1.state").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    with (
        pytest.raises(TuningError, match="has schema 1: the states of its trials are pickles"),
        opened_states(tmp_path, True),
    ):
        pass
    assert not (tmp_path / "ran").exists()
    with opened_states(tmp_path, False) as states:  # a search that continues no trial reads none
        assert states is None
