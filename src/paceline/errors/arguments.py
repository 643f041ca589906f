"""Arguments of a wrong type, refused by the annotations of what was called, and numbers that are too small."""

from __future__ import annotations

import inspect
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard

from paceline.errors.exceptions import PacelineError, UsageError

#: What an annotation allows, in words.
WORDS: dict[Any, str] = {
    str: "a string",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Sequence: "a list",
    Mapping: "a dictionary",
    dict: "a dictionary",
    Callable: "a function",
    types.NoneType: "None",
}
#: Arguments that are refused where they are read, with more to say.
ELSEWHERE = ("job", "plan", "plans")


def check_arguments(called: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise UsageError for the first argument whose type the annotations of a function do not allow."""
    for fault in wrong_types(called, given):
        raise UsageError(fault)


def wrong_types(called: Callable[..., Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each argument, or field of a class, whose type its annotation does not allow.

    Annotations that say more than a type, or name one that is not imported, are passed over.
    """
    for name, annotation in called.__annotations__.items():
        kinds = _kinds(called, annotation) if name in given and name not in ELSEWHERE else []
        if kinds and not any(_fits(given[name], kind) for kind in kinds):
            value = given[name]
            *others, last = dict.fromkeys(WORDS.get(kind, f"a {kind.__name__}") for kind in kinds)
            allowed = f"{', '.join(others)} or {last}" if others else last
            listed = f", as in {name}=[{value!r}]" if Sequence in kinds and isinstance(value, str) else ""
            yield f"{name}={value!r:.60} is of type {type(value).__name__}; give {allowed}{listed}"


def _kinds(called: Any, annotation: Any) -> list[Any]:
    """Return the classes that an annotation allows; none where it cannot be said."""
    if isinstance(annotation, str):
        where = vars(inspect.getmodule(called)) if isinstance(called, type) else inspect.unwrap(called).__globals__
        try:
            annotation = eval(annotation, dict(where))
        except NameError:  # imported for the type checker alone
            return []
    parts = typing.get_args(annotation) if _is_union(annotation) else [annotation]
    kinds = [types.NoneType if part is None else typing.get_origin(part) or part for part in parts]
    return kinds if all(kind in WORDS or _is_class(kind) for kind in kinds) else []


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and kind is not Any and not getattr(kind, "_is_protocol", False)


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind, as this is meant: True is no number, a string no list, and a path any path."""
    if kind in (int, float):
        return isinstance(value, Real if kind is float else Integral) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, os.PathLike)
    if kind is Sequence:
        return isinstance(value, Sequence) and not isinstance(value, str | bytes)
    return callable(value) if kind is Callable else isinstance(value, kind)


# Numbers that a user gives as arguments: Python's or NumPy's, of at least so much.


def plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and anything else as it is: JSON and formats of text take no others."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def whole(name: str, value: Any, least: int, error: type[PacelineError] = UsageError) -> Any:
    """Return an argument as Python's whole number; raise if it is none, or below `least`. None stays None."""
    number = plain(value)
    if number is None or is_whole(number, least):
        return number
    raise error(f"{name}={value!r} is not a whole number of at least {least}")


def is_whole(value: object, least: int) -> TypeGuard[int]:
    """Whether a value is a whole number of at least this; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_positive(value: object) -> TypeGuard[float]:
    """Whether a value is a number above 0, and not NaN or a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) > 0
