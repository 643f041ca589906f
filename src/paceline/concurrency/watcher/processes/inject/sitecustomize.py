"""Runs at the start of every Python process under `paceline watch -- COMMAND`: a signal writes all stacks to a file.

It must stand alone: the program's interpreter need not have Paceline, and may be of another version.
"""

import contextlib
import os
import sys


def _register() -> None:
    import faulthandler

    folder, number = os.environ["PACELINE_STACKS"].rsplit(":", 1)
    files = {}  # the file must stay open for as long as the signal may come

    def register() -> None:
        file = open(os.path.join(folder, f"{os.getpid()}.stack"), "a", encoding="utf-8")  # noqa: SIM115
        faulthandler.register(int(number), file=file, all_threads=True, chain=False)
        files["file"] = file

    register()
    os.register_at_fork(after_in_child=register)


def _run_the_next() -> None:
    """Run the sitecustomize.py that this one hides, if there is one."""
    from importlib.machinery import PathFinder

    folder = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [each for each in sys.path if os.path.abspath(each) != folder])
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


with contextlib.suppress(Exception):  # a program must never fail because it is watched
    _register()
_run_the_next()
