"""Random numbers: which of them each rank draws for itself.

Ranks draw the same numbers from generators with the same seed. A generator of its own (`default_rng()`) counts by its
own seed, the generator of a library by what the file seeds it with.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cached_property

from paceline.concurrency.check.syntax.declarations import Class, Declarations, Function
from paceline.concurrency.check.syntax.names import dotted, is_constant, keyword, short_name

_LIBRARIES = re.compile(
    r"(numpy\.)?random\.(random|randint|randrange|choices?|uniform|rand|shuffle|sample)"
    r"|torch\.(rand|randn|randint|randperm|bernoulli|multinomial)"
)
_UNSEEDED = re.compile(r"uuid\.uuid[14]|secrets\.\w+|os\.urandom")
_DRAWS = {"random", "randint", "randrange", "choice", "uniform", "integers", "normal", "standard_normal", "binomial",
          "permutation", "sample", "choices", "rand", "randn", "random_sample", "poisson", "exponential"}  # fmt: skip
_GENERATORS = {"random.Random", "numpy.random.default_rng", "numpy.random.RandomState"}
#: What seeds one library alone; any other function whose name has `seed` is taken to seed all.
_SEEDS = {
    "random.seed": "random",
    "numpy.random.seed": "numpy",
    "torch.manual_seed": "torch",
    "torch.cuda.manual_seed": "cuda",
    "torch.cuda.manual_seed_all": "cuda",
}


class Chances:
    """The random numbers of one file."""

    def __init__(
        self,
        module: Declarations,
        why: Callable[[ast.expr, Function], str],
        type_of: Callable[[ast.expr, Function], Class | None],
    ) -> None:
        self._module, self._why, self._type_of = module, why, type_of

    def differs(self, call: ast.Call, canonical: str, fn: Function) -> bool | None:
        """Whether each rank draws a number of its own here; None when nothing is drawn."""
        if _UNSEEDED.fullmatch(canonical):
            return True
        if _LIBRARIES.fullmatch(canonical):
            argument = keyword(call, "generator")
            if argument is not None:  # which begins with the same seed on all ranks
                return self._seeded_apart(dotted(argument))
            return not self._seeded & {canonical.partition(".")[0], "all"}
        if short_name(call.func) not in _DRAWS or not isinstance(call.func, ast.Attribute):
            return None
        origin = self._made(call.func.value, fn)
        if origin is None:
            return None
        generator, scope = origin
        seed = generator.args[0] if generator.args else keyword(generator, "seed")
        return seed is None or is_constant(seed, None) or bool(self._why(seed, scope))

    def _made(self, node: ast.expr, fn: Function) -> tuple[ast.Call, Function] | None:
        """The call that makes a generator: of a name, or of an attribute of the object."""
        bindings: list[tuple[ast.expr, Function]] = []
        if isinstance(node, ast.Name):
            bindings = [(scope.bound[node.id], scope) for scope in fn.scopes() if node.id in scope.bound][:1]
        elif isinstance(node, ast.Attribute) and (owner := self._type_of(node.value, fn)) is not None:
            bindings = [pair for cls in owner.ancestry for pair in cls.values.get(node.attr, ())]
        return next(
            (
                (value, scope)
                for value, scope in bindings
                if isinstance(value, ast.Call) and self._module.canonical(value.func) in _GENERATORS
            ),
            None,
        )

    def _seeded_apart(self, generator: str) -> bool:
        """Whether a generator of torch gets a seed that differs from rank to rank."""
        return any(
            call.args and self._why(call.args[0], fn)
            for fn in self._module.functions
            for call in fn.calls
            if short_name(call.func) == "manual_seed" and dotted(call.func).startswith(generator)
        )

    @cached_property
    def _seeded(self) -> set[str]:
        """The libraries whose generator the file seeds with one number on all ranks, which then draw the same."""
        return {
            _SEEDS.get(self._module.canonical(call.func), "all")
            for fn in self._module.functions
            for call in fn.calls
            if "seed" in short_name(call.func).lower() and not any(self._why(given, fn) for given in call.args)
            if not (short_name(call.func) == "manual_seed" and self._module.canonical(call.func) not in _SEEDS)
        }
