"""What an operation gives back: a handle on something that is done, or still under way.

`Operation` is a collective: a generator that writes into its slot, yields its call where everybody must have come with
the same, and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from paceline.backend import calls
from paceline.errors import CollectiveFailed, UsageError

if TYPE_CHECKING:
    from paceline.backend.traffic import Traffic

_Work: Any = dist.Work


class Underway(_Work):  # type: ignore[misc]
    anybody = False  # whether any of those it waits for will do

    def __init__(self, traffic: Traffic, call: int, outputs: Any) -> None:
        super().__init__()
        self.traffic, self.call, self.outputs = traffic, call, outputs
        self.site, self.since = calls.site(), time.perf_counter()
        self.done = False
        self.failure: Exception | None = None
        self._promise: torch.futures.Future[Any] | None = None

    def missing(self) -> list[int]:
        """The ranks it waits for."""
        raise NotImplementedError

    def tell(self) -> str:
        return f"{calls.tell(self.call)} at {self.site or 'an unknown place'}"

    def finish(self, failure: Exception | None = None) -> None:
        self.failure, self.done = failure, True
        if self._promise is not None:
            self.traffic.promised.append(self)

    @property
    def promises(self) -> bool:
        return self._promise is not None

    def keep_promise(self) -> None:
        """Set the future; never while anything is locked, since it may run the user's code."""
        promise, self._promise = self._promise, None
        if promise is not None:
            promise.set_result(self.outputs)

    def _outcome(self, promise: torch.futures.Future[Any]) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.outputs

    # What torch.distributed asks of a handle

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if not self.done:
            self.traffic.wait(self, timeout.total_seconds())
        if self.failure is not None:
            raise self.failure
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self.done:
            self.traffic.tend()
        return self.done

    def is_success(self) -> bool:
        return self.is_completed() and self.failure is None

    def exception(self) -> Any:
        return self.failure

    def result(self) -> Any:
        self.wait()
        return self.outputs

    def get_future(self) -> Any:
        """Set already, where the others are not far; else it is set by the mover, or by who waits for something."""
        if not self.done:
            self.traffic.wait(self, 0.0, patient=False)
        promise: torch.futures.Future[Any] = torch.futures.Future()
        with self.traffic.lock:
            if not self.done:
                self._promise = promise
                # What `set_exception` leaves is an error for Python alone; C++, as in DDP, would take it for a result.
                return promise.then(self._outcome)
        if self.failure is not None:
            raise self.failure
        promise.set_result(self.outputs)
        return promise


class Operation(Underway):
    def __init__(self, traffic: Traffic, call: int, outputs: Any, steps: Iterator[int]) -> None:
        super().__init__(traffic, call, outputs)
        self._steps, self._came = steps, False

    def advance(self) -> bool:
        """As far as it goes without waiting; whether it is done."""
        board = self.traffic.board
        try:
            while not self._came or board.together():
                if self._came and board.differs():
                    self.traffic.fail_by_difference(self)
                    return True
                with torch.inference_mode():  # whoever drives it: tensors made in this mode change in it alone
                    self.call = next(self._steps)
                board.come(self.call)
                self._came = True
        except StopIteration:
            self.finish()
        except UsageError as error:  # all ranks come to the same conclusion
            self.finish(error)
        except Exception as error:
            failure = CollectiveFailed(f"{self.tell()}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.traffic.fail(failure)
        return self.done

    def missing(self) -> list[int]:
        return self.traffic.board.missing()
