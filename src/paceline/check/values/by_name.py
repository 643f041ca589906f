"""The method that a call runs by its name alone, where nothing in the file says more of the object.

`callback.on_epoch_end()` runs the only method of the file that is called so.
"""

from __future__ import annotations

import ast
from functools import cached_property

from paceline.check.syntax.declarations import Declarations, Function
from paceline.check.syntax.names import dotted

#: Methods that objects of libraries have as well, so that their name alone says nothing.
_COMMON = {
    "put_nowait", "get_nowait", "task_done", "set_result", "set_exception", "add_done_callback", "call_soon",
    "call_later", "call_soon_threadsafe", "run_until_complete", "run_in_executor", "create_task", "start_soon",
    "run_forever", "is_set", "wait_for", "notify_all", "wait_closed", "is_alive", "add_signal_handler", "read_text",
    "write_text", "read_bytes",
    "write_bytes", "is_file", "is_dir", "state_dict", "load_state_dict", "zero_grad", "set_epoch", "save_checkpoint",
    "load_checkpoint", "train_batch", "save_pretrained", "from_pretrained", "training_step", "validation_step",
    "send_json", "send_text", "send_bytes", "receive_text", "receive_json", "all_reduce", "all_gather", "all_to_all",
    "add_scalar", "set_description", "raise_for_status", "process_request", "handle_request", "get_logger",
}  # fmt: skip


class ByName:
    """The methods of one file by their names."""

    def __init__(self, module: Declarations) -> None:
        self._module = module

    def method(self, node: ast.Attribute, fn: Function) -> Function | None:
        """The only method with such a name, of an object of which nothing is known."""
        if not isinstance(node.value, ast.Name | ast.Subscript) or "_" not in node.attr.strip("_"):
            return None
        if node.attr in _COMMON:
            return None
        head = dotted(node.value).partition("[")[0].partition(".")[0]
        if head in self._module.imports or any(head in scope.bound for scope in fn.scopes()):
            return None
        found = self._methods.get(node.attr, [])
        return found[0] if len(found) == 1 else None

    @cached_property
    def _methods(self) -> dict[str, list[Function]]:
        """The methods that do something, by their names."""
        found: dict[str, list[Function]] = {}
        for cls in self._module.classes.values():
            for name, method in cls.methods.items():
                if not name.startswith("__") and not all(_is_idle(statement) for statement in method.body):
                    found.setdefault(name, []).append(method)
        return found


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, a docstring or an ellipsis, as in a method that subclasses replace."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
