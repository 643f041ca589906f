"""A child that the user's code forks and lets return ends there; the training that follows is not held responsible."""

from __future__ import annotations

import os

import pytest

from paceline.errors import JobError
from paceline.training.gradients.replica import check, watched


def test_a_returned_child_ends_and_is_reported_once() -> None:
    process, returned = watched()
    child = os.fork()
    if child == 0:
        check(process, returned)
        os._exit(7)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    with pytest.raises(JobError, match=f"forked process {child}"):
        check(process, returned)
    check(*watched())
