"""More files take no true finding away: pairs of a program, and of the same program with files that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.concurrency.check.options import Options
from paceline.concurrency.check.run import check_paths

Texts = dict[str, str]

REGISTRY = """
import threading


class Registry:
    def __init__(self):
        self._lock = threading.Lock()
        self._listeners = []

    def add(self, listener):
        with self._lock:
            self._listeners.append(listener)

    def remove(self, listener):
        with self._lock:
            self._listeners.remove(listener)

    def notify(self, event):
        with self._lock:
            for listener in self._listeners:
                listener(event)
"""
OBSERVER = """
class Observer:
    def __init__(self, registry):
        self.registry = registry
        registry.add({added})

    def {method}(self, event):
        if event == "done":
            self.registry.remove({added})
"""
MAIN = """
import threading
from observer import Observer
from registry import Registry


def main():
    registry = Registry()
    Observer(registry)
    threading.Thread(target=registry.notify, args=("done",)).start()


main()
"""
WATCHES = {
    name: ({"registry.py": REGISTRY}, {"observer.py": OBSERVER.format(added=added, method=method), "main.py": MAIN})
    for name, added, method in (
        ("an observer that calls back", "self.on_event", "on_event"),
        ("an object that is called", "self", "__call__"),
    )
}
PASSES = """
import threading


def send(turn, item):
    turn.acquire()
    item.go()
    turn.release()


gate = threading.Lock()
threading.Thread(target=send, args=(gate, None)).start()
"""
USED = """
import threading


class Ledger:
    def __init__(self):
        self.lock = threading.Lock()
        self.sums = {}

    def book_entry(self, name):
        with self.lock:
            self.sums[name] = 1


class Report:
    def __init__(self):
        self.mutex = threading.Lock()
        self.pages = []

    def add_page(self, page):
        with self.mutex:
            self.pages.append(page)


def close(ledger_of_month, report):
    with ledger_of_month.lock:
        report.add_page("end")


def publish(sheets, target):
    with sheets.mutex:
        target.book_entry("end")
"""
NAMED = """
from used import Ledger


class Archive:
    def book_entry(self, name):
        return name

    def add_page(self, page):
        return page


Archive().add_page(Ledger())
"""
ORDERED = """
import threading

one, two, gate = threading.Lock(), threading.Lock(), threading.Lock()


def forth():
    with two:
        with one:
            return 1


def back():
    with one:
        with two:
            return 2
"""
GATED = "from ordered import gate, one, two\n" + "".join(
    f"\n\ndef {name}{n}():\n    with gate, {first}, {second}:\n        return {n}\n"
    for n in range(8)
    for name, first, second in (("f", "one", "two"), ("g", "two", "one"))
)
HANDED = """
import torch.distributed as dist


def timed(step):
    step()


def save(rank):
    if rank != 0:
        return
    timed(dist_sync)


def dist_sync():
    dist.barrier()
"""
SAVED = """
import torch
import torch.distributed as dist


def main(model):
    dist.init_process_group("gloo")
    save(model, "model.pt")


def save(model, path):
    torch.save(model, path)
"""
PAIRS: dict[str, tuple[Texts, Texts]] = {
    **WATCHES,
    "a caller that passes something unknown": (
        {"passes.py": PASSES},
        {"more.py": "import passes\nfrom other import anything\n\npasses.send(anything(), 1)\n"},
    ),
    "another class with methods of the same names": ({"used.py": USED}, {"named.py": NAMED}),
    "paths that are gated": ({"ordered.py": ORDERED}, {"gated.py": GATED}),
    "another function that is handed over": (
        {"handed.py": HANDED},
        {"more.py": "import handed\n\nhanded.timed(lambda: print(1))\n"},
    ),
    "a caller that asks for the rank": (
        {"saved.py": SAVED},
        {"more.py": "from saved import save\n\n\ndef end(net, rank):\n    if rank == 0:\n        save(net, 'x')\n"},
    ),
}


def found(folder: Path, texts: Texts) -> set[tuple[str, str, int]]:
    for path, text in texts.items():
        (folder / path).write_text(text)
    options = Options(cache=False, jobs=1, min_confidence=0)
    return {(f.path, f.rule, f.line) for f in check_paths([folder], options).findings}


@pytest.mark.parametrize(("texts", "more"), PAIRS.values(), ids=PAIRS)
def test_more_files_take_no_true_finding_away(
    texts: Texts, more: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    alone = found(tmp_path, texts)
    assert alone, "the pair shows nothing"
    assert alone <= found(tmp_path, more)


def test_a_callback_that_is_known_is_shown_on_its_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts, more = WATCHES["an observer that calls back"]
    found(tmp_path, texts | more)
    (finding,) = [f for f in check_paths([tmp_path], Options(cache=False, jobs=1)).findings if f.rule == "PC104"]
    assert [step.what for step in finding.story[-2:]] == [
        "Observer.on_event calls self.registry.remove() (observer.py)",
        "Registry.remove waits for Registry._lock, which it holds",
    ]
