"""Find the recipe that the command line names, in a Python file."""

from __future__ import annotations

import runpy
import traceback
from pathlib import Path

from paceline.errors import DataError, PacelineError
from paceline.training.preparation.recipe import Recipe


def load_recipe(where: str) -> Recipe:
    """Load RECIPE as the command line names it: `file.py`, whose recipe is called `recipe`, or `file.py:name`."""
    path, _, name = where.partition(":")
    if not Path(path).is_file():
        near = f"; did you mean {path}.py?" if Path(f"{path}.py").is_file() else ""
        raise DataError(f"there is no file {path}{near}")
    try:
        namespace = runpy.run_path(path)
    except PacelineError:
        raise
    except SyntaxError as error:
        raise DataError(f"{path} does not parse: line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f" in line {lines[-1]}" if lines else ""
        raise DataError(f"{path} fails when it is read{where}: {type(error).__name__}: {error}") from error
    recipe = namespace.get(name or "recipe")
    if not isinstance(recipe, Recipe):
        others = ", ".join(key for key, value in namespace.items() if isinstance(value, Recipe)) or "none"
        raise DataError(f"{path} has no Recipe called {name or 'recipe'!r}; it has {others}")
    return recipe
