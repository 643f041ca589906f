"""A worker introduces itself to each desk once, and again only when its timer fires."""

from __future__ import annotations

from paceline.algorithms.cluster.messages import DESK, NONE, Enter, Entered, Unknown, View, Views
from paceline.algorithms.cluster.outputs import TIMING, Output, Send
from paceline.algorithms.cluster.worker import WorkerMachine

VIEWS = (View(0, 1, (0,)),)


def entering(outputs: list[Output]) -> int:
    """Count the messages by which a worker introduces itself."""
    return sum(isinstance(output, Send) and isinstance(output.message, Enter) for output in outputs)


def started() -> WorkerMachine:
    machine = WorkerMachine(0, 1, TIMING)
    assert entering(machine.start(0.0)) == 1
    return machine


def test_views_that_overtake_the_answer_do_not_make_it_enter_again_and_again() -> None:
    machine = started()
    said = [entering(machine.handle(0.1, DESK, Views(1, VIEWS))) for _ in range(5)]
    assert said == [1, 0, 0, 0, 0], "once, since the desk of this epoch may not have got the first message"
    assert entering(machine.handle(0.2, DESK, Unknown(1))) == 0


def test_it_enters_again_when_no_answer_comes() -> None:
    machine = started()
    machine.handle(0.1, DESK, Views(1, VIEWS))
    assert entering(machine.tick(0.1 + TIMING.resend)) == 1


def test_a_desk_of_a_greater_epoch_is_entered_at_once() -> None:
    machine = started()
    machine.handle(0.1, DESK, Entered(1, 0))
    assert entering(machine.handle(0.2, DESK, Views(1, VIEWS))) == 0
    assert entering(machine.handle(0.3, DESK, Views(2, VIEWS))) == 1
    assert entering(machine.handle(0.4, DESK, Unknown(2))) == 0
    machine.handle(0.5, DESK, Entered(2, 0))
    assert machine.entered
    assert entering(machine.handle(0.6, DESK, Unknown(2))) == 1, "that desk has taken it for dead"


def test_it_says_which_block_it_holds() -> None:
    machine = started()
    machine.block = range(32, 48)
    (sent,) = machine.handle(0.1, DESK, Unknown(1))
    assert sent == Send(DESK, Enter(32))
    assert started().start(0.0) == [Send(DESK, Enter(NONE))]
