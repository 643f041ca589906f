"""Callbacks and loggers as words: `name:option=value,option=value`, as plans are written."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from paceline.errors import UsageError, suggest

Made = TypeVar("Made")


def parsed(make: Callable[..., Made], text: str, what: str, *first: Any) -> Made:
    """Call `make` with the options after the colon of a text, each of the type of its default."""
    name, _, rest = text.partition(":")
    defaults = {
        key: parameter.default
        for key, parameter in list(inspect.signature(make).parameters.items())[len(first) :]
        if parameter.default is not inspect.Parameter.empty
    }
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(
                f"{what} {text!r}: {part!r} is no option=value, as in {name}:{next(iter(defaults), 'x')}=..."
            )
        if key not in defaults:
            raise UsageError(f"{what} {name} has no option {key!r}; {suggest(key, defaults)}")
        options[key] = _value(value, defaults[key], f"{what} {name}: {key}")
    return make(*first, **options)


def _value(text: str, default: Any, where: str) -> Any:
    kind = type(default) if isinstance(default, int | float) else str
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"{where}={text!r} is not {'a whole number' if kind is int else 'a number'}") from None


def named_callbacks(early_stopping: str | None, best_checkpoint: str | None) -> list[Any]:
    """Return the callbacks that a command line names, each by its metric and options."""
    from paceline.interfaces.callbacks.watching import BestCheckpoint, EarlyStopping

    requests = (
        ("early stopping by", EarlyStopping, early_stopping),
        ("best checkpoint by", BestCheckpoint, best_checkpoint),
    )
    return [parsed(make, text, what, text.partition(":")[0]) for what, make, text in requests if text is not None]


def require(package: str, what: str) -> None:
    """Raise UsageError if a package is not installed that an extra of Paceline brings."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(f"{what} needs the package {package}; install it by: pip install 'paceline[{package}]'")
