"""Puts the rewriting in the way of `import`, for the files of the program."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from paceline.concurrency.explore.interpose import control
from paceline.concurrency.explore.rewriting.accesses import rewritten
from paceline.concurrency.explore.rewriting.points import Points

#: Rewritten code by file: a process that starts many runs fills it once.
compiled: dict[str, CodeType] = {}


def code_of(file: str) -> CodeType:
    if file not in compiled:
        compiled[file] = compile(rewritten(Path(file).read_bytes(), file), file, "exec", dont_inherit=True)
    return compiled[file]


class Scope:
    """Which files are the program's: those below its folders, but for installed packages."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [f"{folder.resolve()}/" for folder in folders]
        paths = sysconfig.get_paths()
        installed = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
        installed.add(str(Path(__file__).parents[1]))  # this package itself
        self._others = [f"{Path(each).resolve()}/" for each in installed]

    def has(self, file: str) -> bool:
        path = str(Path(file).resolve())
        inside = path.startswith(tuple(self._folders)) and not path.startswith(tuple(self._others))
        return inside and "/site-packages/" not in path


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a file of the program, rewritten."""

    def get_code(self, fullname: str) -> CodeType:
        return code_of(self.path)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[control.MARK] = Points(self.path)
        where = control.here()
        # Other threads that import the same module would wait outside the control.
        if where is not None:
            where[1].quiet += 1
        try:
            super().exec_module(module)
        finally:
            if where is not None:
                where[1].quiet -= 1


class Finder(importlib.abc.MetaPathFinder):
    """Finds what Python's own finder finds, and loads the program's files rewritten."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        if not self._scope.has(spec.origin):
            return None
        spec.loader = _Loader(name, spec.origin)
        return spec


def run_script(file: str, name: str = "__main__") -> ModuleType:
    """Execute a script, rewritten, as `__main__`; return its module."""
    module = ModuleType(name)
    module.__dict__.update({"__file__": file, "__builtins__": __builtins__, control.MARK: Points(file)})
    sys.modules[name] = module
    exec(code_of(file), module.__dict__)
    return module
