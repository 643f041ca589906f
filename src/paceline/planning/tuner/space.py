"""The space of a tuning: what may vary, and how a point of the unit cube becomes a configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.algorithms.tuning import Coordinates
from paceline.errors import TuningError, plain, suggest

Configuration = dict[str, Any]
#: Parents with the value, or the list of values, under which a parameter exists.
Condition = Mapping[str, Any]
POINTS = 5  # values of a float in a grid, if nothing else is said


@dataclass(frozen=True)
class Float:
    """A real number from `low` to `high`; with `log`, evenly over orders of magnitude; `count` values in a grid."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    count: int | None = None
    when: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        _take_plain(self)

    def faults(self) -> str:
        if fault := _no_range(self.low, self.high, self.log):
            return fault
        if self.step is not None and (self.step <= 0 or self.log):
            return f"a step of {self.step}" + ", and a logarithmic scale" * self.log
        return "" if self.count is None or self.count > 0 else f"{self.count} values"

    def value(self, coordinate: float) -> float:
        if self.step is not None:
            steps = int((self.high - self.low) / self.step + 1e-9) + 1
            return self.low + self.step * min(int(coordinate * steps), steps - 1)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return self._within(math.exp(low + coordinate * (high - low)))
        return self._within(self.low + coordinate * (self.high - self.low))

    def _within(self, value: float) -> float:
        """Return the value without the digits that rounding has left at its end."""
        return float(min(self.high, max(self.low, float(f"{value:.12g}"))))

    def grid(self) -> list[float]:
        """Return the coordinates of the values in a grid; without a step both ends are among them."""
        if self.step is not None:
            return _middles(int((self.high - self.low) / self.step + 1e-9) + 1)
        count = self.count or POINTS
        return [place / (count - 1) for place in range(count)] if count > 1 else [0.5]


@dataclass(frozen=True)
class Int:
    """A whole number from `low` to `high`, both included."""

    low: int
    high: int
    log: bool = False
    step: int = 1
    when: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        _take_plain(self)

    def faults(self) -> str:
        if fault := _no_range(self.low, self.high, self.log):
            return fault
        return "" if self.step > 0 and not (self.log and self.step > 1) else f"a step of {self.step}"

    def value(self, coordinate: float) -> int:
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(self.high, max(self.low, round(math.exp(low + coordinate * (high - low)))))
        return self.low + self.step * min(int(coordinate * self._steps()), self._steps() - 1)

    def _steps(self) -> int:
        return (self.high - self.low) // self.step + 1

    def grid(self) -> list[float]:
        return _middles(self._steps())


@dataclass(frozen=True)
class Choice:
    """One of some values, which are numbers, texts, booleans or None."""

    choices: Sequence[Any]
    when: Condition = field(default_factory=dict)

    def __post_init__(self) -> None:
        _take_plain(self)

    def faults(self) -> str:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence) or not self.choices:
            return f"choices {self.choices!r}, which is not a list of values"
        odd = [value for value in self.choices if not isinstance(value, bool | int | float | str | type(None))]
        return (
            f"the choice {odd[0]!r}; give a number, a text, a boolean or None, and look up the rest by it"
            if odd
            else ""
        )

    def value(self, coordinate: float) -> Any:
        return self.choices[min(int(coordinate * len(self.choices)), len(self.choices) - 1)]

    def grid(self) -> list[float]:
        return _middles(len(self.choices))


Parameter = Float | Int | Choice


def _take_plain(parameter: Parameter) -> None:
    """Let a parameter hold Python's numbers where NumPy's were given."""
    for name, value in vars(parameter).items():
        plain_value = type(value)(map(plain, value)) if isinstance(value, list | tuple) else plain(value)
        object.__setattr__(parameter, name, plain_value)


def _middles(count: int) -> list[float]:
    return [(place + 0.5) / count for place in range(count)]


class Space:
    """Named parameters, and constraints that a configuration has to fulfil."""

    def __init__(
        self, parameters: Mapping[str, Any], constraints: Sequence[Callable[[Configuration], bool]] = ()
    ) -> None:
        if not isinstance(parameters, Mapping):
            raise TuningError(
                f"the space is {parameters!r:.60}; give a dictionary, as in "
                "{'lr': paceline.Float(1e-3, 1.0, log=True)}"
            )
        self.parameters = {str(name): _parameter(str(name), domain) for name, domain in parameters.items()}
        self.constraints = list(constraints)
        before = list[str]()
        for name, parameter in self.parameters.items():
            if fault := parameter.faults():
                raise TuningError(f"the space's {name} has {fault}")
            for parent in parameter.when:
                if parent not in before:
                    raise TuningError(
                        f"the space's {name} depends on {parent!r}, which does not come before it; "
                        f"{suggest(parent, before)}"
                    )
            before.append(name)

    def configuration(self, coordinates: Coordinates) -> Configuration | None:
        """Return the configuration at a point: the parameters that exist there. None if it is not allowed."""
        settings: Configuration = {}
        for (name, parameter), coordinate in zip(self.parameters.items(), coordinates, strict=True):
            if exists(parameter.when, settings):
                settings[name] = parameter.value(coordinate)
        return settings if self.allows(settings) else None

    def allows(self, configuration: Configuration) -> bool:
        """Return whether all constraints hold."""
        return all(allowed(configuration) for allowed in self.constraints)

    def grid(self) -> list[list[float]]:
        return [parameter.grid() for parameter in self.parameters.values()]

    def describe(self) -> dict[str, dict[str, Any]]:
        """Return the parameters as JSON has them."""
        return {name: _described(parameter) for name, parameter in self.parameters.items()}


def _described(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter as a table of a file has it; the type is named, as JSON reads 1.0 and 1 alike."""
    kind = {} if isinstance(parameter, Choice) else {"type": type(parameter).__name__.lower()}
    fields = {k: v for k, v in vars(parameter).items() if v is not None and v is not False and v != {}}
    return {**kind, **fields}


def exists(when: Condition, configuration: Configuration) -> bool:
    """Return whether a parameter with this condition exists in a configuration."""
    return all(
        parent in configuration
        and configuration[parent] in (values if isinstance(values, list | tuple | set) else [values])
        for parent, values in when.items()
    )


def _no_range(low: float, high: float, log: bool) -> str:
    """Return what is wrong with the ends of a range; empty if nothing is."""
    if not low <= high:
        return f"low={low} and high={high}; give a low that is not above high"
    return f"low={low} on a logarithmic scale; give a low above 0" if log and low <= 0 else ""


KEYS = {"low", "high", "log", "step", "count", "when", "choices", "type"}


def _parameter(name: str, definition: Any) -> Parameter:
    """Return a parameter: as it is, from a list of choices, or from a table of a file."""
    if isinstance(definition, Float | Int | Choice):
        return definition
    if isinstance(definition, list | tuple):
        return Choice(list(definition))
    if not isinstance(definition, Mapping):
        raise TuningError(
            f"the space's {name} is {definition!r:.60}; give a list of values, or a range, as in "
            "{low = 0.001, high = 1.0}; in Python paceline.Float, Int or Choice"
        )
    if unknown := sorted(set(definition) - KEYS):
        raise TuningError(f"the space's {name} has a key {unknown[0]!r}; {suggest(unknown[0], KEYS)}")
    if "choices" in definition:
        return Choice(definition["choices"], definition.get("when", {}))
    if not {"low", "high"} <= set(definition) or not all(
        isinstance(definition[key], int | float) for key in ("low", "high")
    ):
        raise TuningError(f"the space's {name} needs two numbers, low and high, or a list of choices")
    rest = {key: value for key, value in definition.items() if key not in ("type", "low", "high")}
    kind = definition.get("type") or (
        "int" if isinstance(definition["low"], int) and isinstance(definition["high"], int) else "float"
    )
    if kind not in ("int", "float"):
        raise TuningError(f"the space's {name} has the type {kind!r}; {suggest(str(kind), ('int', 'float'))}")
    parameter_type = Int if kind == "int" else Float
    try:
        return parameter_type(definition["low"], definition["high"], **rest)
    except TypeError as error:
        raise TuningError(f"the space's {name}: {error}") from None


def read_space(file: Path) -> Space:
    """Read a space from a file: TOML or JSON with a table for each name, or Python with `space` and `constraints`."""
    if not file.is_file():
        raise TuningError(f"--space {file}: there is no such file; give a .toml, .json or .py file")
    if file.suffix == ".py":
        names: dict[str, Any] = {}
        try:
            exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
        except Exception as error:
            raise TuningError(f"{file} fails when it is read: {type(error).__name__}: {error}") from error
        space = names.get("space")
        if isinstance(space, Space):
            return space
        if not isinstance(space, Mapping):
            raise TuningError(f"{file} has no dictionary called `space`")
        return Space(space, names.get("constraints", ()))
    tables = _tables(file)
    if not tables:
        raise TuningError(f"{file} is empty: give a table for each name that may vary")
    return Space(tables)


def _tables(file: Path) -> dict[str, Any]:
    try:
        if file.suffix == ".json":
            return dict(json.loads(file.read_text(encoding="utf-8")))
        try:
            import tomllib
        except ImportError:
            raise TuningError(f"{file}: reading TOML needs Python 3.11; give the same as .json or .py") from None
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise TuningError(f"{file} cannot be read: {error}") from error
