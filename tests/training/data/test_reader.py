from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import islice

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from paceline.algorithms.agenda import Agenda, Chunk
from paceline.training.data.source import DatasetSource, Order, Reader

BAD = 5


class Samples(Dataset):  # type: ignore[type-arg]
    def __init__(self, bad: int = -1) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[int, Tensor, int]:
        if index == self.bad:
            raise ValueError("torn")
        return index, torch.randn(3), os.getpid()


@contextmanager
def _reader(loaders: int, repeats: bool = False, bad: int = -1) -> Iterator[Reader]:
    order = Order(60, 3, shuffle=bad < 0)
    with closing(Reader(DatasetSource(Samples(bad), 3), order, loaders, lambda _: None, repeats)) as reader:
        yield reader


def _chunks() -> list[Chunk]:
    agenda = Agenda(60, batch_size=4, epochs=2)
    return [chunk for update in range(agenda.updates) for chunk in agenda.filled(update)]


def _check(reader: Reader, chunk: Chunk) -> None:
    numbers, noise, pids = reader.batch(chunk)
    with _reader(0) as other:
        expected = other.batch(chunk)
    assert torch.equal(numbers, expected[0])
    assert torch.equal(noise, expected[1])
    assert os.getpid() not in pids.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_forecast_never_gives_wrong_samples(seed: int) -> None:
    chance, chunks, place = random.Random(seed), _chunks(), 0
    with _reader(2) as reader:
        while place < len(chunks):
            foreseen = chunks[place:] if chance.random() < 0.7 else chance.sample(chunks, len(chunks))
            if chance.random() < 0.8:
                reader.announce(iter(foreseen))
            for _ in range(chance.randrange(4)):
                _check(reader, chunks[place % len(chunks)])
                place += chance.choice([0, 1, 1, 2])


def test_what_is_read_in_vain_does_not_pile_up() -> None:
    chunks = _chunks()
    with _reader(1) as reader:
        for chunk in reversed(chunks):
            reader.announce(iter(chunks))
            _check(reader, chunk)
            assert len(reader._ready) <= 2 * reader.ahead


def test_what_comes_is_read_once_and_in_advance() -> None:
    asked: list[Chunk] = []

    def foreseen() -> Iterator[Chunk]:
        for chunk in _chunks():
            asked.append(chunk)
            yield chunk

    with _reader(1) as reader:
        reader.announce(foreseen())
        for number, chunk in enumerate(islice(_chunks(), 10), start=1):
            _check(reader, chunk)
            assert asked == _chunks()[: number + reader.ahead]


def test_a_batch_that_is_asked_for_again_is_as_it_was_read() -> None:
    first, second, *_ = _chunks()
    with _reader(1, repeats=True) as reader:
        reader.announce(iter([first, second]))
        for chunk in (first, first, first, second, second):
            _check(reader, chunk)
            reader.batch(chunk)[1].zero_()  # as a layer does that works in place


def test_a_sample_that_cannot_be_read_fails_where_it_is_asked_for() -> None:
    chunks = _chunks()
    with _reader(1, bad=BAD) as reader:
        reader.announce(iter([chunks[1], *chunks[2:]]))  # sample 5 is in the chunk after the first
        reader.batch(chunks[0])
        reader.batch(chunks[2])
        with pytest.raises(ValueError, match="torn"):
            reader.batch(chunks[1])


def _noted(function: Callable[[], Chunk | None], found: list[Chunk | None]) -> Callable[[], Chunk | None]:
    """Return the function, which from now on appends what it returns."""

    def call() -> Chunk | None:
        found.append(function())
        return found[-1]

    return call


def test_chunks_that_a_survivor_takes_over_are_soon_read_ahead_again() -> None:
    """The loaders are at later updates by then; a chunk of these that was dropped would be missing in its turn."""
    agenda, read, taken_over = Agenda(60, batch_size=4, epochs=80, parts=2), list[Chunk | None](), 50

    def coming() -> Iterator[Chunk]:
        for update in range(agenda.updates):
            yield from agenda.mine(update, 0)
            if update >= taken_over and requested >= taken_over:
                yield from agenda.mine(update, 1)

    with _reader(2) as reader:
        reader._next = _noted(reader._next, read)  # type: ignore[method-assign]
        reader.announce(coming())
        for requested in range(agenda.updates):
            for chunk in agenda.filled(requested)[: 1 + (requested >= taken_over)]:
                numbers, _, _ = reader.batch(chunk)
                assert torch.equal(numbers, reader.order.indices(chunk))
    wanted = agenda.updates + (agenda.updates - taken_over)
    assert sum(chunk is not None for chunk in read) == len({*read} - {None}) <= wanted
    assert read.count(None) < 50
