"""Which door a process has, by the options that it was started with."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import SecurityError
from paceline.links.tcp.doors import LOOPBACK, Door, TrustedNetwork
from paceline.links.tcp.tls import MutualTls


def door_of(keys: Path | None, token: str | None) -> Door:
    """Return the door that has these keys, or asks for this token, or is on loopback if both are None."""
    if keys is not None and token is not None:
        raise SecurityError("keys and a token were given; keys alone are enough, and a token alone encrypts nothing")
    if keys is not None:
        return MutualTls(keys)
    return LOOPBACK if token is None else TrustedNetwork(token.encode())
