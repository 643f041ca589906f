"""How communication between the processes of a run fails."""

from __future__ import annotations

from paceline.errors.base import RunFailed


class CollectiveFailed(RunFailed, RuntimeError):
    """An operation of torch.distributed failed; also a `RuntimeError`, as in PyTorch."""


class CollectivesDiffer(CollectiveFailed):
    """Two ranks called different operations."""


class RankGone(CollectiveFailed):
    """A rank that others wait for has ended, or has left the group."""


class RankMissing(CollectiveFailed):
    """A rank did not call before the group's timeout."""


class ConnectionFailed(RunFailed):
    """A connection between two processes of a run failed."""


class FrameError(ConnectionFailed):
    """Bytes arrived that are not a frame, or not one that is allowed."""

    def __init__(self, part: str, what: str) -> None:
        self.part = part  # of the frame: magic, version, kind, number, integers, body
        super().__init__(what)


class PeerLost(ConnectionFailed):
    """The process at the other end has ended, is silent or does not read."""

    def __init__(self, peer: str, why: str, left: bool = False, silent: bool = False) -> None:
        self.peer, self.why, self.silent = peer, why, silent
        self.left = left  # on purpose, and has said so
        super().__init__(f"{peer} {why}")


class PeerRefused(ConnectionFailed):
    """One of the two ends did not accept the other."""
