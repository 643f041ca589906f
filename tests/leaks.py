"""One look for what is left behind, for all tests of a module that start nothing themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.testing.leaks import nothing_left_behind


@contextmanager
def module_leaves_nothing_behind(folders: pytest.TempPathFactory) -> Iterator[None]:
    """Fail when the tests of a module leave something; only their own temporary files are looked at.

    A module lasts long enough for other processes of this machine to create files in the common folder.
    """
    scratch = str(folders.mktemp("scratch"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", scratch)
        with nothing_left_behind():
            yield
