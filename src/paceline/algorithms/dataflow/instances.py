"""The instances of a training: the chunks of all updates, numbered one after another."""

from __future__ import annotations

from paceline.algorithms.agenda import Agenda, Chunk


class Instances:
    """Numbers the chunks of an agenda that have samples."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        epoch = range(min(agenda.updates_per_epoch, agenda.updates))
        #: For each instance of an epoch: its update within the epoch, and its chunk's number.
        self._places = [(update, chunk.number) for update in epoch for chunk in agenda.filled(update)]
        self._numbers = {place: number for number, place in enumerate(self._places)}
        full_epochs, rest = divmod(agenda.updates, agenda.updates_per_epoch)
        each = len(self._places)
        extra = sum(update < rest for update, _ in self._places)
        #: For each pass over the data, the number behind its last instance.
        self.passes = tuple(each * (number + 1) for number in range(full_epochs)) + (
            (each * full_epochs + extra,) if rest else ()
        )

    def chunk(self, instance: int) -> Chunk:
        """Return the chunk of an instance."""
        epoch, number = divmod(instance, len(self._places))
        update, chunk = self._places[number]
        return self.agenda.chunks(epoch * self.agenda.updates_per_epoch + update)[chunk]

    def number(self, update: int, chunk: int) -> int:
        """Return the number of the instance that is this chunk of this update."""
        epoch, within = divmod(update, self.agenda.updates_per_epoch)
        return epoch * len(self._places) + self._numbers[within, chunk]

    def pass_of(self, instance: int) -> int:
        """Return the pass that an instance belongs to."""
        return instance // len(self._places)

    def updates_until(self, passed: int) -> int:
        """Return the updates that so many passes make."""
        return min(passed * self.agenda.updates_per_epoch, self.agenda.updates)
