"""Run one program: `python -m programs FAMILY NAME`; without arguments, list them."""

from __future__ import annotations

import importlib
import sys

from programs import VERDICT

if len(sys.argv) == 3:
    importlib.import_module(f"programs.{sys.argv[1]}").PROGRAMS[sys.argv[2]]()
else:
    for family in VERDICT:
        print(family, *importlib.import_module(f"programs.{family}").PROGRAMS)
