"""What the agent of a node that Ray has started runs: the same as the agent of a launcher's node."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum

from paceline.errors import RunFailed, RunOver
from paceline.runtime.engines.cluster.roster import Roster
from paceline.training.jobs.pickling import unpack_program


class How(Enum):
    """How an agent has ended."""

    DONE = "done"
    #: The head cannot be reached, or has gone on without this node.
    LOST = "lost"
    #: Its process has ended without an answer.
    KILLED = "killed"
    #: The job cannot be trained on this node.
    UNFIT = "unfit"


@dataclass(frozen=True)
class AgentEnd:
    """What an agent returns to the driver, through Ray."""

    how: How
    why: str = ""


def run(spec: bytes, roster: Roster) -> AgentEnd:
    """Train this node's part of a packed `RunSpec`, and return how that has ended."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the driver says it
            unpack_program(spec).take_part(roster)
    except RunOver as error:
        return AgentEnd(How.DONE, str(error))
    except RunFailed as error:
        return AgentEnd(How.LOST, str(error))
    except Exception as error:
        return AgentEnd(How.UNFIT, f"{type(error).__name__}: {error}")
    return AgentEnd(How.DONE)
