"""An attribute of a thread that hides one of `threading.Thread` itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts

#: Names of `threading.Thread` that `start`, `join` and `is_alive` use -> which of them.
HIDDEN = {
    "_stop": "join()",
    "_started": "start()",
    "_is_stopped": "join()",
    "_bootstrap": "start()",
    "_delete": "run()",
}


def find(facts: Facts) -> Iterator[Witness]:
    """Report assignments to such attributes in subclasses of threading.Thread."""
    for cls in facts.module.classes.values():
        if not cls.is_a("threading.Thread", "threading.Timer"):
            continue
        for fn in cls.methods.values():
            for target, _ in fn.assigns:
                owner = target.value if isinstance(target, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id == fn.self_name and target.attr in HIDDEN:  # type: ignore[attr-defined]
                    name = target.attr  # type: ignore[attr-defined]
                    yield Witness(target, fn, cls=cls, name=name, method=HIDDEN[name])
                    break
