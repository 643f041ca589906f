"""What is found behind wrappers depends neither on how many there are nor on where they stand in the file."""

from __future__ import annotations

import pytest

from paceline.concurrency.check.engine import check_text
from tests.each import each

BEGIN = """
import threading

class Account:
    def __init__(self):
        self._books = threading.Lock()
        self._cash = threading.Lock()

    def pay(self):
        with self._books:
            with self._cash:
                self.paid = True
"""
AUDIT = """
    def audit(self):
        with self._cash:
            self._step_0()
"""
COUNT = """
    def _step_{n}(self):
        with self._books:
            return self.paid
"""
CALL = """
    def {name}(self):
        return self.{callee}()
"""


def wrapped(wrappers: int, where: str) -> str:
    """A deadlock whose second lock is taken behind so many calls, and as many functions more that lead to it."""
    chain = [CALL.format(name=f"_step_{n}", callee=f"_step_{n + 1}") for n in range(wrappers)]
    outside = [CALL.format(name=f"outer_{n}", callee=f"outer_{n + 1}") for n in range(wrappers)]
    outside.append(CALL.format(name=f"outer_{wrappers}", callee="audit"))
    body = [*chain, COUNT.format(n=wrappers), AUDIT]
    parts = {
        "callers first": [*outside, AUDIT, *body[:-1]],
        "callees first": [*reversed(body), *reversed(outside)],
        "callees before their users": [*reversed(body[:-1]), AUDIT, *outside],
    }
    return BEGIN + "".join(parts[where])


@each("where", ["callers first", "callees first", "callees before their users"])
@each("wrappers", range(9))
def test_a_deadlock_is_found_behind_any_number_of_wrappers(wrappers: int, where: str) -> None:
    found = check_text("account.py", wrapped(wrappers, where))
    assert [f.rule for f in found] == ["PC101"]
    assert len(found[0].story) == 4 + wrappers + 1


@pytest.mark.parametrize("asked_before", range(9))
def test_functions_that_lead_to_a_deadlock_do_not_hide_it(asked_before: int) -> None:
    """Summaries are asked for in the order of the file: here from farther and farther outside."""
    outside = "".join(CALL.format(name=f"outer_{n}", callee=f"outer_{n + 1}") for n in range(asked_before))
    begins = CALL.format(name="begins", callee="outer_0").replace(
        "        return", "        with self._other:\n            "
    )
    ends = CALL.format(name=f"outer_{asked_before}", callee="_step_0")
    chain = CALL.format(name="_step_0", callee="_step_1") + CALL.format(name="_step_1", callee="_step_2")
    text = BEGIN.replace("\n    def pay", "        self._other = threading.Lock()\n\n    def pay")
    found = check_text("account.py", text + begins + outside + ends + AUDIT + chain + COUNT.format(n=2))
    assert [f.rule for f in found] == ["PC101"]


def test_functions_that_call_each_other_in_a_circle_all_take_what_one_of_them_takes() -> None:
    circle = (
        CALL.format(name="_step_0", callee="_step_1")
        + CALL.format(name="_step_1", callee="_step_2")
        + """
    def _step_2(self):
        if self.paid:
            return self._step_0()
        return self._step_3()
"""
        + COUNT.format(n=3)
    )
    first = CALL.format(name="outer", callee="_step_2").replace(
        "        return", "        with self._other:\n            "
    )
    text = BEGIN.replace("\n    def pay", "        self._other = threading.Lock()\n\n    def pay")
    assert [f.rule for f in check_text("account.py", text + first + AUDIT + circle)] == ["PC101"]


@pytest.mark.parametrize("helpers", range(9))
def test_a_lock_is_held_in_helpers_of_any_depth(helpers: int) -> None:
    chain = "".join(CALL.format(name=f"_step_{n}", callee=f"_step_{n + 1}") for n in range(helpers))
    last = f"\n    def _step_{helpers}(self):\n        self._last += 1\n        return self._last\n"
    begin = BEGIN[: BEGIN.index("    def pay")].replace("self._cash = threading.Lock()", "self._last = 0")
    locked = "    def pay(self):\n        with self._books:\n            return self._step_0()\n"
    loose = "    def pay(self):\n        return self._step_0()\n"
    assert check_text("account.py", begin + locked + chain + last) == []
    assert check_text("account.py", begin + last + chain + locked) == []
    assert [f.rule for f in check_text("account.py", begin + loose + chain + last)] == ["PC402"]


@pytest.mark.parametrize("wrappers", range(9))
def test_a_collective_of_some_ranks_is_found_behind_any_number_of_wrappers(wrappers: int) -> None:
    """Whatever else calls them: here a chain of functions as long, which stands before them in the file."""

    def call(name: str, callee: str) -> str:
        return f"\ndef {name}():\n    {callee}()\n"

    outside = [call(f"outer_{n}", f"outer_{n + 1}") for n in range(wrappers)] + [call(f"outer_{wrappers}", "step_0")]
    chain = [call(f"step_{n}", f"step_{n + 1}") for n in range(2)] + [call("step_2", "dist.barrier")]
    some = "\ndef train():\n    if dist.get_rank() == 0:\n        step_0()\n"
    for body in ([*outside, *chain, some], [*reversed(chain), *reversed(outside), some], [some, *outside, *chain]):
        text = "import torch.distributed as dist\n" + "".join(body)
        assert [f.rule for f in check_text("train.py", text)] == ["PC501"]


def test_calls_that_double_at_each_level_end() -> None:
    levels = "".join(f"\ndef step_{n}():\n    step_{n - 1}()\n    step_{n - 1}()\n" for n in range(1, 60))
    text = f"import torch.distributed as dist\n\ndef step_0():\n    dist.barrier()\n{levels}"
    assert check_text("train.py", text) == []
