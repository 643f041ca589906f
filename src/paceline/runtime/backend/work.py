"""What an operation returns: a handle on something that is done, or still under way."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from paceline.errors import CollectiveFailed, UsageError
from paceline.runtime.backend import group_memory
from paceline.runtime.backend.group_memory import GroupMemory

_Work: Any = dist.Work


class Engine(Protocol):
    """What a work asks of the progress engine that drives it."""

    memory: GroupMemory
    lock: threading.RLock
    promised: deque[PendingWork]

    def wait(self, work: PendingWork, seconds: float, patient: bool = True) -> None:
        """Return when the work is done."""

    def tend(self) -> None:
        """Move whatever can be moved."""

    def fail(self, failure: CollectiveFailed) -> None:
        """End everything that is under way in the group with this failure."""

    def fail_by_difference(self, work: CollectiveWork) -> None:
        """End everything because ranks have called different operations."""


class PendingWork(_Work):  # type: ignore[misc]
    """The handle: done, failed or under way. How it goes on is its engine's affair."""

    #: Whether any one of the ranks that it waits for will do.
    any_source: bool

    def __init__(self, engine: Engine, call: int, outputs: Any) -> None:
        super().__init__()
        self.engine, self.call, self.outputs = engine, call, outputs
        self.site, self.since = group_memory.call_site(), time.perf_counter()
        #: Never falls back to False; set by `finish` alone.
        self.done = False
        self.failure: Exception | None = None
        #: A future that was returned before the work was done.
        self._promise: torch.futures.Future[Any] | None = None

    @abstractmethod
    def missing(self) -> list[int]:
        """The ranks that it waits for."""
        raise NotImplementedError

    @abstractmethod
    def counterpart(self) -> str:
        """The one rank that a message is sent to or received from, if there is one."""
        raise NotImplementedError

    def describe(self) -> str:
        """Describe it: `send of 3 float32 to rank 1 (tag 0) at train.py:40`."""
        return f"{group_memory.describe(self.call)}{self.counterpart()} at {self.site or 'an unknown place'}"

    def finish(self, failure: Exception | None = None) -> None:
        """Mark it as done. A future that was returned is set later, by `keep_promise`."""
        self.failure, self.done = failure, True
        if self._promise is not None:
            self.engine.promised.append(self)

    @property
    def promises(self) -> bool:
        """Whether a future was returned that is not set yet."""
        return self._promise is not None

    def keep_promise(self) -> None:
        """Set the future. Never called under a lock, since it may run the user's code."""
        promise, self._promise = self._promise, None
        if promise is not None:
            promise.set_result(self.outputs)

    def _outcome(self, promise: torch.futures.Future[Any]) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.outputs

    # What torch.distributed asks of a handle

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is done; raise what it failed with."""
        if not self.done:
            self.engine.wait(self, timeout.total_seconds())
        if self.failure is not None:
            raise self.failure
        return True

    def synchronize(self) -> None:
        """Wait: there is no stream to wait on instead."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is done, after a look at what can be moved."""
        if not self.done:
            self.engine.tend()
        return self.done

    def is_success(self) -> bool:
        """Whether it is done and has not failed."""
        return self.is_completed() and self.failure is None

    def exception(self) -> Any:
        """What it failed with."""
        return self.failure

    def result(self) -> Any:
        """Wait, and return the outputs."""
        self.wait()
        return self.outputs

    def get_future(self) -> Any:
        """Return a future: set already where the others are not far, else set by the background thread or a waiter."""
        if not self.done:
            self.engine.wait(self, 0.0, patient=False)
        promise: torch.futures.Future[Any] = torch.futures.Future()
        with self.engine.lock:
            if not self.done:
                self._promise = promise
                # What `set_exception` leaves is an error for Python alone; C++, as in DDP, would take it for a result.
                return promise.then(self._outcome)
        if self.failure is not None:
            raise self.failure
        promise.set_result(self.outputs)
        return promise


class CollectiveWork(PendingWork):
    """A collective: a generator that writes into its slot, yields its call where all ranks must have arrived with the
    same, and goes on.
    """

    any_source = False

    def __init__(self, engine: Engine, call: int, outputs: Any, steps: Iterator[int]) -> None:
        super().__init__(engine, call, outputs)
        self._steps, self._arrived = steps, False

    def advance(self) -> bool:
        """Go on as far as it goes without waiting; whether it is done."""
        memory = self.engine.memory
        try:
            # [5] All ranks have arrived in the round: compare their calls, then read their slots.
            while not self._arrived or memory.all_arrived():
                if self._arrived and memory.any_differs():
                    self.engine.fail_by_difference(self)
                    return True
                # Whichever thread drives it: tensors that were made in this mode can be changed in it alone.
                with torch.inference_mode():
                    self.call = next(self._steps)  # [3] or [6]: up to the next round, or to the end
                memory.arrive(self.call)  # [4] the slot is written: say so, with the call
                self._arrived = True
        except StopIteration:
            self.finish()
        except UsageError as error:  # all ranks come to the same conclusion
            self.finish(error)
        except Exception as error:
            failure = CollectiveFailed(f"{self.describe()}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.engine.fail(failure)
        return self.done

    def missing(self) -> list[int]:
        """The ranks that have not arrived in its round."""
        return self.engine.memory.missing()

    def counterpart(self) -> str:
        """Nothing: a collective deals with all ranks."""
        return ""
