"""A machine that joins has the rank that it was offered, also if others come, leave and come back meanwhile."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest

from paceline.algorithms.cluster.vacancies import NO_VACANCY, Vacancies, Vacancy

PATIENCE = 10.0


class World:
    """An open run of three ranks beside the head's, whose machines come, are lost and come back."""

    def __init__(self, seed: int, vacancies: type[Vacancies]) -> None:
        self.chance, self.now = random.Random(seed), 0.0
        self.vacancies = vacancies(range(1, 4), PATIENCE)
        #: The machine of each rank that has one; the machine of each offer that may still be used, and until when.
        self.connected: dict[int, int] = {}
        self.offered: dict[Vacancy, tuple[int, float]] = {}
        self.faults: list[str] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def run(self) -> list[str]:
        """Make a history, and return what went wrong."""
        for machine in range(6):
            self.later(10 * self.chance.random(), partial(self.ask, machine))
        while self._events and self.now < 100:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self.faults

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def usable(self) -> Iterator[int]:
        """The ranks that machines were offered, and may still come by."""
        return (vacancy.rank for vacancy, (_, until) in self.offered.items() if self.now < until)

    def ask(self, machine: int) -> None:
        """A machine asks for a rank, fetches the job and comes; some never do."""
        vacancy = self.vacancies.offer(self.now)
        if vacancy == NO_VACANCY:
            if free := {1, 2, 3} - {*self.connected, *self.usable()}:
                self.faults.append(f"machine {machine} got no rank, and {free} were free")
            return
        self.offered[vacancy] = machine, self.now + PATIENCE
        if self.chance.random() < 0.8:
            self.later(1.2 * PATIENCE * self.chance.random(), lambda: self.come(machine, vacancy))
        else:
            self.later(self.chance.random(), lambda: self.vacancies.withdraw(vacancy))
            self.later(2 * PATIENCE, lambda: self.ask(machine))
            self.offered[vacancy] = machine, self.now + 1.0

    def come(self, machine: int, vacancy: Vacancy) -> None:
        """A machine comes as a rank, by an offer or as it had it before."""
        _, until = self.offered.pop(vacancy, (machine, 0.0))
        if vacancy.rank not in self.connected and self.vacancies.admits(self.now, vacancy):
            self.connected[vacancy.rank] = machine
            self.vacancies.joined(vacancy.rank)
            self.later(20 * self.chance.random(), lambda: self.lose(machine, vacancy))
            return
        if self.now < until:
            self.faults.append(f"machine {machine} was offered rank {vacancy.rank}, which another one has by now")
        self.ask(machine)

    def lose(self, machine: int, vacancy: Vacancy) -> None:
        del self.connected[vacancy.rank]
        self.vacancies.lost(vacancy.rank)
        self.later(15 * self.chance.random(), lambda: self.come(machine, vacancy))


class AdmitsAnybody(Vacancies):
    """A machine that comes back has its rank, also if that was offered to another one."""

    def admits(self, now: float, vacancy: Vacancy) -> bool:
        return True


class OffersTwice(Vacancies):
    """A rank is free until its machine has come."""

    def _offered(self, now: float, rank: int) -> int:
        return 0


class OffersForEver(Vacancies):
    """A machine that never comes keeps its rank."""

    def _offered(self, now: float, rank: int) -> int:
        return super()._offered(0.0, rank)


def first_fault(vacancies: type[Vacancies]) -> str:
    return next((f"seed {seed}: {wrong}" for seed in range(200) if (wrong := World(seed, vacancies).run())), "")


def test_who_was_offered_a_rank_has_it() -> None:
    assert not first_fault(Vacancies)


@pytest.mark.parametrize("fault", [AdmitsAnybody, OffersTwice, OffersForEver])
def test_a_planted_fault_is_found(fault: type[Vacancies]) -> None:
    assert first_fault(fault)


def test_a_rank_that_no_machine_has_had_is_offered_first() -> None:
    vacancies = Vacancies((1, 2), PATIENCE, members=(1,))
    vacancies.lost(1)
    assert vacancies.offer(0.0).rank == 2
    assert vacancies.offer(0.0).rank == 1
    assert vacancies.offer(0.0) == NO_VACANCY


def test_an_offer_of_an_earlier_head_is_none_of_the_next_one() -> None:
    before, now = Vacancies((1, 2), PATIENCE), Vacancies((1, 2), PATIENCE, term=1)
    assert before.offer(0.0) != now.offer(0.0)
