"""The machines of a cluster keep their promises on a network that loses, doubles, delays and cuts."""

from __future__ import annotations

import pytest

from paceline.core.cluster.messages import KINDS, View, Views, pack, unpack
from paceline.engines.virtual.network import History, Scenario, first_fault
from paceline.errors import ProtocolError
from tests.core.cluster.planted_faults import PLANTED

SEEDS, PARTS = 5000, 4  # the parts run side by side
RARE = {"SpareIsSafe", "EntersOlderViews"}  # found, but only after more than 500 seeds


@pytest.mark.parametrize("part", range(PARTS))
def test_no_history_of_5000_seeds_breaks_a_promise(part: int) -> None:
    found = first_fault(range(part, SEEDS, PARTS))
    assert found is None, History(Scenario.draw(found[0]), tell=True).tell()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.soak] if n in RARE else []) for n in PLANTED])
def test_a_planted_fault_is_found_and_told(name: str) -> None:
    found = first_fault(range(2000), PLANTED[name])
    assert found is not None
    history = History(Scenario.draw(found[0]), PLANTED[name], tell=True)
    history.run()
    assert found[1] in history.tell().splitlines()[-1]


def test_messages_come_back_from_their_integers() -> None:
    for kind in KINDS:
        fields = [((7, 8),) if "tuple[int" in str(t) else ((View(1, 2, (3,)),),) if "View" in str(t) else (5,)
                  for t in kind.__annotations__.values()]  # fmt: skip
        message = kind(*[value for (value,) in fields])
        assert unpack(*pack(message)) == message


@pytest.mark.parametrize("integers", [[1], [1, 3], [1, 1, 0, 5, 2, 1], [1, -1], [1, 0, 9]])
def test_broken_integers_are_refused(integers: list[int]) -> None:
    with pytest.raises(ProtocolError):
        unpack(KINDS.index(Views), integers)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ProtocolError):
        unpack(len(KINDS), [])
