"""Many small cases in one test: a case of a millisecond takes ten where it is a test of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test for every case, as `pytest.mark.parametrize` does, and name the case that fails."""
    names = (names,) if isinstance(names, str) else names
    cases = list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            for case in cases:
                try:
                    test(**dict(zip(names, case if len(names) > 1 else (case,), strict=True)), **fixtures)
                except Exception as fault:
                    raise AssertionError(f"case {case!r}") from fault

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in names]
        all_cases.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return all_cases

    return decorate
