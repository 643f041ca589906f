"""Findings whose steps are in several files, through imports, re-exports and base classes, in any order of files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from paceline.concurrency.check.across import Linked, findings_across
from paceline.concurrency.check.engine import examine
from paceline.concurrency.check.interface import read_interface
from paceline.concurrency.check.options import Options
from paceline.concurrency.check.run import check_paths

CACHE = """
import threading

from shop.store import Store


class Cache:
    def __init__(self, store: Store):
        self._lock = threading.Lock()
        self._store = store

    def drop(self, key):
        with self._lock:
            self._store.forget(key)

    def clear(self):
        with self._lock:
            return None
"""
STORE = """
import threading

from shop import cache


class Store:
    def __init__(self):
        self._mutex = threading.Lock()
        self._cache = cache.Cache(self)

    def forget(self, key):
        with self._mutex:
            return key

    def flush(self):
        with self._mutex:
            self._cache.clear()
"""
ORDERS = {"shop/__init__.py": "", "shop/cache.py": CACHE, "shop/store.py": STORE}
HANDLER = "from shop import fetch\n\n\nasync def handle(name):\n    return fetch(name)\n"
FETCH = """
import requests


def fetch(name):
    return _get(name).json()


def _get(name):
    return requests.get(name)
"""
BLOCKING = {"shop/__init__.py": "from .web import fetch  # thread\n", "shop/web.py": FETCH, "app.py": HANDLER}


def across(files: dict[str, str]) -> list[tuple[str, str, int]]:
    found = findings_across({path: examine(path, text).interface for path, text in files.items()})
    return [(f.rule, f.path, f.line) for f in found]


def test_locks_of_two_files_are_taken_in_both_orders() -> None:
    assert across(ORDERS) == [("PC101", "shop/cache.py", 14)]
    assert not across({**ORDERS, "shop/store.py": STORE.replace("            self._cache.clear()", "            pass")})


def test_a_coroutine_calls_what_blocks_in_another_file_through_a_re_export() -> None:
    assert across(BLOCKING) == [("PC301", "app.py", 5)]
    assert not across({**BLOCKING, "app.py": HANDLER.replace("fetch(name)", "await to_thread(fetch, name)")})


def test_one_rank_calls_a_function_of_another_file_with_a_barrier() -> None:
    saving = "import torch.distributed as dist\n\n\ndef save(model):\n    model.write()\n    dist.barrier()\n"
    job = "import torch\nfrom saving import save\n\n\ndef main(model, rank):\n    if rank == 0:\n        save(model)\n"
    assert across({"saving.py": saving, "job.py": job}) == [("PC501", "job.py", 7)]
    assert not across({"saving.py": saving, "job.py": job + "    else:\n        save(model)\n"})
    assert not across({"saving.py": saving, "job.py": job.replace("rank == 0", "model.large")})


def test_other_ranks_return_before_a_function_of_another_file_with_a_barrier() -> None:
    saving = "import torch.distributed as dist\n\n\ndef save(model):\n    model.write()\n    dist.barrier()\n"
    job = (
        "import torch\nfrom saving import save\n\n\ndef main(model, rank):\n    if rank != 0:\n        return\n"
        "    save(model)\n"
    )
    assert across({"saving.py": saving, "job.py": job}) == [("PC501", "job.py", 8)]
    assert not across({"saving.py": saving, "job.py": job.replace("rank != 0", "model.small")})
    decorated = (
        "import torch\nfrom lightning.pytorch.utilities import rank_zero_only\nfrom saving import save\n\n\n"
        "@rank_zero_only\ndef main(model):\n    save(model)\n"
    )
    assert across({"saving.py": saving, "job.py": decorated}) == [("PC501", "job.py", 8)]


STREAM = """
class Stream:
    async def flush(self):
        self.flushed = True

    @background
    async def report(self):
        self.reported = True

    async def lines(self):
        yield self.flushed
"""
CLOSING = """
from stream import Stream


class Service:
    def __init__(self):
        self.stream = Stream()

    async def close(self):
        self.stream.flush()
"""


def test_a_coroutine_of_another_file_is_not_awaited() -> None:
    assert across({"stream.py": STREAM, "service.py": CLOSING}) == [("PC305", "service.py", 10)]
    for instead in ("await self.stream.flush()", "task = self.stream.flush()", "self.stream.report()"):
        assert not across({"stream.py": STREAM, "service.py": CLOSING.replace("self.stream.flush()", instead)})


def test_a_lock_of_a_base_class_in_another_file_is_one_lock() -> None:
    base = "import threading\n\n\nclass Base:\n    def __init__(self):\n        self._lock = threading.Lock()\n"
    sub = (
        "from base import Base\n\n\nclass Sub(Base):\n    def run(self):\n        with self._lock:\n            pass\n"
    )
    interfaces = {path: examine(path, text).interface for path, text in {"base.py": base, "sub.py": sub}.items()}
    linked = Linked(interfaces)
    assert list(linked.takes["sub.py", "Sub.run"]) == ["base.py:Base._lock"]


@pytest.mark.parametrize("files", [ORDERS, BLOCKING], ids=["orders", "blocking"])
def test_the_order_of_the_files_makes_no_difference(files: dict[str, str]) -> None:
    found = {tuple(across(dict(order))) for order in itertools.permutations(files.items())}
    assert len(found) == 1


def test_an_interface_survives_json() -> None:
    interface = examine("cache.py", CACHE).interface
    assert read_interface(json.loads(json.dumps(interface))) == interface


def test_files_are_checked_together_also_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, text in ORDERS.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    first, again = (check_paths([Path("shop")], Options()).findings for _ in range(2))
    assert [f.rule for f in first] == [f.rule for f in again] == ["PC101"]
    assert "shop/store.py" in first[0].explanation()
    marked = CACHE.replace("self._store.forget(key)", "self._store.forget(key)  # paceline: ignore[PC101]")
    (tmp_path / "shop/cache.py").write_text(marked)
    assert not check_paths([Path("shop")], Options()).findings
