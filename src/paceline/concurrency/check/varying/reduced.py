"""What collectives have made the same on every rank: gradients, and the arguments of functions that reduce them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property

from paceline.concurrency.check.libraries.catalogue import WRAPPERS
from paceline.concurrency.check.syntax.declarations import Declarations, Function
from paceline.concurrency.check.syntax.names import short_name

# A call of such a name gives every rank the same value, and makes its arguments the same on every rank.
SPREADS = re.compile(r"all_?reduce|broadcast|bcast|all_?gather|reduce_(?!sc)|gather_for_metrics|synchroni|agree|sync_")
#: Objects whose `reduce` and `gather` do the same.
OF_ALL = ("accelerator", "fabric", "strategy")
DEPTH = 3  # calls through which a reduction is looked for


def spreads(call: ast.Call) -> bool:
    """Whether a call gives every rank the same value, by its name."""
    name = short_name(call.func)
    if SPREADS.search(name):
        return True
    owner = short_name(call.func.value).strip("_") if isinstance(call.func, ast.Attribute) else ""
    return name in ("reduce", "gather") and owner in OF_ALL


class Reduced:
    """Where the gradients of a file are those of all ranks."""

    def __init__(self, module: Declarations, callee: Callable[[ast.Call, Function], Function | None]) -> None:
        self._module, self._callee = module, callee

    def before(self, node: ast.expr, fn: Function, depth: int = 0) -> bool:
        """Whether gradients have been averaged over the ranks before this line, by a wrapper or by hand."""
        if self._wrapped or not self._computes:
            return True
        if any(call.lineno < node.lineno and self.reduces(call, fn) for call in fn.calls):
            return True
        sites = self.sites.get(id(fn), ()) if depth < DEPTH else ()
        return bool(sites) and all(self.before(site, caller, depth + 1) for site, caller in sites)

    def reduces(self, call: ast.Call, fn: Function, depth: int = 0) -> bool:
        """Whether a call runs a collective that gives every rank the same, itself or in a function of the file."""
        if spreads(call):
            return True
        callee = self._callee(call, fn) if depth < DEPTH else None
        return callee is not None and any(self.reduces(inner, callee, depth + 1) for inner in callee.calls)

    @cached_property
    def _wrapped(self) -> bool:
        """Whether `backward()` averages the gradients: the file wraps a model, or a library does."""
        averaging = ("accelerate", "lightning", "deepspeed", "horovod", "transformers")
        return any(origin.startswith(averaging) for origin in self._module.imports.values()) or any(
            short_name(call.func) in WRAPPERS for fn in self._module.functions for call in fn.calls
        )

    @cached_property
    def _computes(self) -> bool:
        """Whether the file computes gradients and averages them itself."""
        calls = [call for fn in self._module.functions for call in fn.calls]
        return any(short_name(c.func) == "backward" for c in calls) and any(spreads(c) for c in calls)

    @cached_property
    def sites(self) -> dict[int, list[tuple[ast.Call, Function]]]:
        """Function -> the calls that run it, each with its caller."""
        call_sites: dict[int, list[tuple[ast.Call, Function]]] = {}
        for fn in self._module.functions:
            for call in fn.calls:
                if (callee := self._callee(call, fn)) is not None:
                    call_sites.setdefault(id(callee), []).append((call, fn))
        return call_sites
