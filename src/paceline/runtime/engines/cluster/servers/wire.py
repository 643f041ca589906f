"""Frames between the processes of servers: the machines' messages, and the few that no machine knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

from paceline.algorithms.cluster.messages import KINDS, Process, Role
from paceline.runtime.links.tcp.address import Address
from paceline.runtime.links.tcp.frame import FIRST_KIND
from paceline.runtime.links.tcp.handshake import Peer

#: Roles in handshakes: those of the machines' processes, after it.
ROLES = 16
#: The kinds of the machines' messages, then those below.
MESSAGES = FIRST_KIND
OTHER = FIRST_KIND + 128
assert len(KINDS) < OTHER - MESSAGES


class Other(IntEnum):
    """Frames that no machine knows."""

    #: A server tells the desk where it listens; the body is an address.
    LISTENING = OTHER
    #: The desk tells all where servers listen; the body is a table.
    ADDRESSES = OTHER + 1
    #: The desk tells the head how many batches are finished, how many workers there are, whether all is done,
    #: the shard that is lost, and whether nothing is leased.
    PROGRESS = OTHER + 2
    #: The desk tells the head about an event; the body is its record.
    EVENT = OTHER + 3
    #: The head asks a server for the pushes that its shard is made of, and for its version if it wants that, too.
    #: Asked: rows that the head has, their checksum, whether the version is wanted. Answered: the fields of
    #: `collector.Answer`; the body is the version, then the rows.
    HISTORY = OTHER + 4
    #: The head asks the desk to lease nothing new (1), or to go on (0).
    HOLD = OTHER + 5


def kind_of(message: type) -> int:
    """Return the kind of frames with this message."""
    return MESSAGES + KINDS.index(message)


@lru_cache(1024)  # asked for with every message
def peer_of(process: Process) -> Peer:
    return Peer(ROLES + process.role, process.number)


@lru_cache(1024)
def process_of(peer: Peer) -> Process:
    return Process(Role(peer.role - ROLES), peer.number)


def addresses_to_bytes(addresses: Mapping[int, Address]) -> bytes:
    return json.dumps({str(number): list(address) for number, address in addresses.items()}).encode()


def addresses_from_bytes(body: bytes | memoryview) -> dict[int, Address]:
    """Return where each server listens.

    Raises:
        ValueError: the bytes are no such table.
    """
    return {int(number): Address(str(host), int(port)) for number, (host, port) in json.loads(bytes(body)).items()}
