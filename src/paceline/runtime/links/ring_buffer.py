"""A single-producer single-consumer ring of slots in shared memory.

    sent | taken | slot 0 | slot 1 | slot 2 | ...
      │      │
      │      └─ written by the consumer alone: slots that it is done with
      └──────── written by the producer alone: slots that hold something

Two counters that never fall are enough, since each has one writer: the ring is empty where they are equal, and full
where all slots lie between them. The counters lie on cache lines of their own, or each process would slow the other one
down. Mailboxes, the messages of the torch.distributed backend and the rows of the trace travel through such rings.
"""

from __future__ import annotations

HEAD = 128  # bytes before the slots: two cache lines


class Ring:
    """The counters and the slots of a ring over some bytes. Producer and consumer each make their own."""

    def __init__(self, raw: memoryview, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        #: sent[0] is how many slots the producer has filled since the beginning.
        self.sent = raw[:8].cast("q")
        #: taken[0] is how many of them the consumer is done with.
        self.taken = raw[HEAD // 2 : HEAD // 2 + 8].cast("q")
        #: The bytes of all slots.
        self.raw = raw[HEAD : HEAD + slots * slot_bytes]

    @staticmethod
    def size(slots: int, slot_bytes: int) -> int:
        """The bytes that a ring takes."""
        return HEAD + slots * slot_bytes

    @property
    def full(self) -> bool:
        """Whether the producer has no free slot."""
        return self.sent[0] - self.taken[0] >= self.slots

    @property
    def empty(self) -> bool:
        """Whether the consumer has nothing to take."""
        return self.sent[0] == self.taken[0]

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot, by its place in the ring."""
        return self.raw[number * self.slot_bytes : (number + 1) * self.slot_bytes]
