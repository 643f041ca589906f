"""Which files each machine of a cluster has for itself, so that its ranks may find others than those of the rest."""

from __future__ import annotations

import ast

from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.names import short_name

ASKS_FOR_FILES = {"exists", "isfile", "isdir", "is_file", "is_dir", "glob", "listdir", "iterdir"}
#: Folders of disks that are not shared between machines.
OWN_DISKS = ("/tmp", "/var/tmp", "/dev/shm", "/scratch", "/local", "/mnt/local", "/mnt/nvme", "/raid")
DEPTH = 6  # names and calls through which a path is followed


def asks_own_disk(call: ast.Call, fn: Function) -> bool:
    """Whether a call asks for a file that each machine has for itself: `os.path.exists("/tmp/last.pt")`."""
    if short_name(call.func) not in ASKS_FOR_FILES:
        return False
    path = call.args[0] if call.args else call.func.value if isinstance(call.func, ast.Attribute) else call
    for _ in range(DEPTH):
        scope = next((s for s in fn.scopes() if isinstance(path, ast.Name) and path.id in s.bound), None)
        if scope is not None and isinstance(path, ast.Name):
            path = scope.bound[path.id]
        elif isinstance(path, ast.Call) and path.args and short_name(path.func) in ("join", "Path", "str"):
            path = path.args[0]
        elif isinstance(path, ast.BinOp):
            path = path.left
        elif isinstance(path, ast.JoinedStr) and path.values:
            path = path.values[0]
        else:
            break
    text = path.value if isinstance(path, ast.Constant) else ""
    temporary = isinstance(path, ast.Call) and short_name(path.func) in ("gettempdir", "mkdtemp")
    return temporary or (isinstance(text, str) and text.startswith(OWN_DISKS))
