"""What wraps or shards the models of a file, so that to run them, or `backward()`, is a collective."""

from __future__ import annotations

from functools import cached_property

from paceline.concurrency.check.libraries import catalogue
from paceline.concurrency.check.syntax.declarations import Declarations, Function
from paceline.concurrency.check.syntax.names import short_name
from paceline.concurrency.check.values.meeting import Meeting


class Wrappers:
    """The wrappers of the models of one tree."""

    def __init__(self, module: Declarations, meeting: Meeting) -> None:
        self._module, self._meeting = module, meeting

    def average(self, fn: Function) -> bool:
        """Whether a program of this function wraps a model so that `backward()` averages over all ranks."""
        return bool(self._averaging) and self._meeting.of_one_program(self._averaging, fn, fn.line)

    @cached_property
    def _averaging(self) -> list[tuple[Function, int]]:
        """The functions that wrap a model, or are annotated to get a wrapped one, each with a line."""
        functions = self._module.functions
        named = [(c.func, fn) for fn in functions for c in fn.calls]
        named += [(each, fn) for fn in functions for each in fn.parameters.values() if each is not None]
        return [
            (fn, name.lineno)
            for name, fn in named
            if short_name(name) in catalogue.WRAPPERS and not self._module.canonical(name).startswith(catalogue.OF_RPC)
        ]

    @cached_property
    def shard(self) -> bool:
        """Whether this file spreads the parameters of a model over the ranks."""
        origins = self._module.imports.values()
        return any(origin.endswith((".FullyShardedDataParallel", ".fully_shard")) for origin in origins)

    @cached_property
    def normalise(self) -> bool:
        """Whether a model of this file keeps running means, which DistributedDataParallel makes those of rank 0."""
        used = (a.attr for fn in self._module.functions for a in fn.attributes)
        return any(name.startswith(("BatchNorm", "SyncBatchNorm")) for name in used)
