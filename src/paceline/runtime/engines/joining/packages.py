"""The packages that a job imports, and those that another machine lacks or has in another version."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import NamedTuple

from paceline.version import __version__

#: Which must be the same on all machines: what travels is code of this Python, and gradients of this PyTorch.
SAME = ("paceline", "torch")


class Package(NamedTuple):
    """An installed package that a file imports."""

    #: As it is imported, and as pip calls it.
    module: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution}=={self.version.partition('+')[0]}"


def python() -> str:
    """Return the version of Python, as far as code of one runs on the other."""
    return ".".join(map(str, sys.version_info[:2]))


def imported_packages(files: Iterable[Path]) -> list[Package]:
    """Return the installed packages that source files import, and those that every node needs."""
    names = set(SAME)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    known = packages_distributions()
    return [_package(name, known) for name in sorted(names) if name in SAME or name in known]


def _package(name: str, known: Mapping[str, list[str]]) -> Package:
    distribution = known.get(name, [name])[0]
    return Package(name, distribution, _version(name, distribution))


def _version(name: str, distribution: str) -> str:
    if name == "paceline":
        return __version__
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def lacking(packages: Iterable[Package], needed_python: str, host: str) -> list[str]:
    """Return what is wrong with this machine, a line each, for a run on `host`; none if it can take part."""
    lines = []
    if needed_python != python():
        lines.append(f"Python {needed_python} is needed, as {host} has it, and this is Python {python()}")
    for each in packages:
        if importlib.util.find_spec(each.module) is None:
            lines.append(f"{each.module} is not installed here: pip install {each}")
        elif each.module in SAME and (here := _version(each.module, each.distribution)) != each.version:
            lines.append(f"{each.module} is {here} here and {each.version} on {host}: pip install {each}")
    return lines


def different(packages: Iterable[Package]) -> list[str]:
    """Return the packages that this machine has in another version, which may do."""
    pairs = ((each, _version(each.module, each.distribution)) for each in packages if each.module not in SAME)
    return [
        f"{each.distribution} {here} (there {each.version})" for each, here in pairs if here not in ("", each.version)
    ]
