"""Where fields lie in the structures of each known version of CPython, on 64-bit Linux.

The numbers are those of the headers, by `offsetof` with `Py_BUILD_CORE`; of tasks, those of `_asynciomodule.c`.
"""

from __future__ import annotations

from typing import NamedTuple


class Layout(NamedTuple):
    """The layout of one version; what is not named has not changed in any of them."""

    interpreters: int  # _PyRuntimeState.interpreters.head
    gil: tuple[bool, int]  # whether it lies in _PyRuntimeState, else PyInterpreterState points to it; and where
    threads: int  # PyInterpreterState.threads.head
    modules: int  # PyInterpreterState.imports.modules
    collector: int  # PyInterpreterState.gc.generations
    next_thread: int
    native_id: int
    on_delete: int  # PyThreadState.on_delete_data: a weak reference to the lock that ends with the thread; 0 if gone
    current_frame: tuple[int, ...]  # pointers to follow from PyThreadState
    code: int  # _PyInterpreterFrame.f_code
    previous: int
    instruction: int
    stack_top: int
    owner: int
    globals: int  # _PyInterpreterFrame.f_globals
    locals: int
    names: tuple[int, int]  # PyCodeObject.co_filename, co_name
    locals_names: int
    first_line: int
    locals_count: int
    exceptions: int
    lines: int
    bytecode: int
    cached_keys: int  # PyHeapTypeObject.ht_cached_keys
    coroutine_frame: int  # PyCoroObject.cr_iframe
    text: tuple[int, int]  # where the characters of a string lie: ASCII, others
    tagged_numbers: bool  # whether an int has a tag with its size and sign, and not a signed size
    values: str  # of an instance without a dictionary: "beside" the pointer to one, "instead" of it, or "inline"
    every_task: tuple[str, str]  # of asyncio.tasks: a weak set of tasks, and a set of those that began eagerly
    task_state: int  # 0: pending; of TaskObj, as those below
    task_waits_for: int
    task_coroutine: int
    task_name: int


_3_11 = Layout(
    interpreters=40, gil=(True, 360), threads=16, modules=888, collector=672, next_thread=8, native_id=160,
    on_delete=192, current_frame=(56, 8), code=32, previous=48, instruction=56, stack_top=64, owner=69, globals=8,
    locals=72, names=(112, 120),
    locals_names=96, first_line=72, locals_count=76, exceptions=40, lines=136, bytecode=184, cached_keys=872,
    coroutine_frame=80, text=(48, 72), tagged_numbers=False, values="beside", every_task=("_all_tasks", ""),
    task_state=88, task_waits_for=128, task_coroutine=136, task_name=144,
)  # fmt: skip
_3_12 = _3_11._replace(
    gil=(False, 384), threads=72, modules=944, collector=136, native_id=144, on_delete=176, current_frame=(56, 0),
    code=0, previous=8, owner=70, globals=24, first_line=68, locals_count=72, bytecode=192, cached_keys=880,
    coroutine_frame=72, text=(40, 56), tagged_numbers=True, values="instead",
    every_task=("_scheduled_tasks", "_eager_tasks"),
)  # fmt: skip
_3_13 = _3_12._replace(
    interpreters=632,
    gil=(False, 16),
    threads=7344,
    modules=7656,
    collector=7424,
    native_id=160,
    on_delete=0,
    current_frame=(72,),
    bytecode=200,
    values="inline",
    task_state=96,
    task_waits_for=112,
    task_coroutine=120,
    task_name=128,
)
LAYOUTS = {(3, 11): _3_11, (3, 12): _3_12, (3, 13): _3_13}
