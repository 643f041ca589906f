"""What rewritten code calls before an access: it announces the access, unless no other thread could see it."""

from __future__ import annotations

import asyncio
import collections
import functools
import gc
import io
import sys
import threading
import weakref
from collections.abc import Hashable, Iterator
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodDescriptorType, MethodType, ModuleType
from types import MethodWrapperType as BoundSlot
from types import WrapperDescriptorType as Slot
from typing import Any

from paceline.concurrency.explore.interpose import control, files
from paceline.concurrency.explore.operation import Mode, Operation, Place, Touch
from paceline.concurrency.explore.scheduler import Run, Task

Touches = tuple[Touch, ...]
Where = tuple[Run, Task]
CONTAINERS = (list, dict, set, collections.deque, bytearray)
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
READING = (
    {"get", "keys", "values", "items", "copy", "count", "index", "most_common", "elements"}
    | {"union", "intersection", "difference", "issubset", "issuperset", "isdisjoint"}  # of sets
)
#: Built-in functions that read all elements of their arguments.
READERS = (
    {"list", "tuple", "set", "frozenset", "dict", "str", "repr", "bool"}
    | {"len", "sum", "min", "max", "any", "all", "sorted"}
    | {"iter", "enumerate", "reversed", "map", "filter", "zip"}
)
ORDERED = {"list", "tuple", "iter", "enumerate", "map", "filter", "zip", "dict"}  # those whose results have an order
#: Functions that access the attribute, or item, that their second argument names; some have underscores around.
ATTRIBUTE, ITEM = {"getattr", "hasattr", "getattribute", "setattr", "delattr"}, {"getitem", "setitem", "delitem", "get"}
GETTERS = {"attrgetter": "getattr", "itemgetter": "getitem"}
COPYING = {"copy", "deepcopy", "replace", "asdict", "astuple"}
VERBS = {"read": "reads", "write": "writes", "update": "updates"}
UNSEEN = {"exec", "eval"}  # run code that is not rewritten, in the frame that calls them
LIBRARIES = {"builtins", "_operator", "copy", "dataclasses", "_heapq", "_bisect", "random", None}
CODE = (FunctionType, BuiltinFunctionType, classmethod, staticmethod, property, functools.cached_property, type)
UNBOUND = (MethodDescriptorType, Slot)
CALLS = (BuiltinFunctionType, FunctionType, MethodType, BoundSlot, type, *UNBOUND)


class _Begun(threading.local):
    """What expressions of a thread have begun, by a number of the source: an index, the write of `target += value`."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, Any]] = []

    def push(self, number: int, entry: Any) -> None:
        self._entries.append((number, entry))

    def pop(self, number: int) -> Any:
        """Remove and return an entry; None if there is none: it was begun before the first thread."""
        at = next((at for at in reversed(range(len(self._entries))) if self._entries[at][0] == number), None)
        return None if at is None else self._entries.pop(at)[1]


class Points:
    """The calls of one file, which announce an access and return what they were called with; see `accesses`."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._begun = _Begun()

    # ---- attributes

    def at(self, owner: Any, name: str, line: int, mode: str, number: int = 0) -> Any:
        if name == "__dict__":
            _note_owner(owner)
        where = self._step(line, mode)
        location = where and _attribute(owner, name, mode == "read")
        if where is not None and location is not None:
            # What is read of a class may be stored in its object meanwhile.
            places = dict.fromkeys((location, (id(owner), name)))
            touches = tuple(Touch(each, _mode(mode)) for each in places)
            self._announce(where, owner, f"{_label(owner)}.{name}", touches, line, mode, number)
        return owner

    # ---- functions that are told what to access

    def indirect(self, function: Any) -> Any:
        """Return a function that announces what its arguments say; what is no such function as it is."""
        if type(function) not in CALLS:
            return function
        name, owner = function.__name__, getattr(function, "__self__", None)
        if isinstance(owner, io.IOBase):
            return functools.partial(files.contents, function) if name in files.CONTENTS else function
        bound = () if owner is None or isinstance(owner, ModuleType) else (owner,)
        is_method = isinstance(function, UNBOUND) or _is_container(owner) or isinstance(function, BoundSlot)
        if not is_method and getattr(function, "__module__", None) not in LIBRARIES:
            return function
        if name in UNSEEN:
            if not self._is_alone():
                control.this()[0].outside[f"code that `{name}` runs in {self._file.rpartition('/')[2]}"] = None
            return function
        if name in GETTERS:
            return functools.partial(_Getter, self, function)

        def announced(*args: Any, **settings: Any) -> Any:
            if name == "globals":
                return _note_owner(sys.modules[sys._getframe(1).f_globals["__name__"]])
            if name == "vars":
                return _note_owner(*args) if args else sys._getframe(1).f_locals
            self.announce(name, *bound, *args)
            return function(*(map(_in_order_of_rank, args) if name in ORDERED else args), **settings)

        return announced

    def announce(self, name: str, owner: Any = None, *args: Any) -> None:
        """Announce the access that a function makes with these arguments."""
        if self._is_alone():
            return
        line, kind = control.place().line, name.strip("_")
        mode = "write" if kind.startswith(("set", "del")) else "read"
        if kind in ATTRIBUTE and args and isinstance(args[0], str):
            self.at(owner, args[0], line, mode)
        elif kind in ITEM and args:
            self.hold(owner, 0)
            self.item(args[0], line, 0, mode)
        elif name in READERS:
            for each in (owner, *args):
                self.whole(each, line, "read")
        elif name in COPYING and hasattr(owner, "__dict__"):
            self.whole(_note_owner(owner), line, "read")
        else:
            self.whole(owner, line, "read" if name in READING | COPYING else "write")

    # ---- items and elements

    def hold(self, container: Any, number: int) -> Any:
        if not self._is_alone() and _is_container(container):
            self._begun.push(number, container)
        return container

    def item(self, key: Any, line: int, number: int, mode: str) -> Any:
        container = self._begun.pop(number)
        where = None if container is None else self._step(line, mode)
        if where is not None:
            text = repr(key)
            subject = f"{_label(container)}[{text if len(text) <= 20 else f'{text[:17]}...'}]"
            self._announce(where, container, subject, _item_touches(container, key, mode), line, mode, number)
        return key

    def whole(self, container: Any, line: int, mode: str) -> Any:
        where = self._step(line, mode) if _is_container(container) else None
        if where is not None:
            shape, elements = (id(container), "shape"), (id(container), "elements")
            touches: Touches = (Touch(shape, _mode(mode)), Touch(elements, "read"))
            if id(container) in _owners:
                touches += tuple(Touch(_of_owner(container, name), _mode(mode)) for name in container)
            subject = f"the elements of a {_label(container)}"
            self._announce(where, container, subject, touches, line, mode, is_access=False)
        return container

    def elements(self, iterable: Any, line: int) -> Any:
        iterable = _in_order_of_rank(iterable)
        if not isinstance(iterable, (*CONTAINERS, *VIEWS)) or self._is_alone():
            return iterable
        return self._each(iterable, _mapping(iterable) if isinstance(iterable, VIEWS) else iterable, line)

    def _each(self, iterable: Any, container: Any, line: int) -> Iterator[Any]:
        self.whole(container, line, "read")
        for element in iterable:
            yield element
            self.whole(container, line, "read")

    # ---- variables

    def name(self, name: str, owner: str, line: int, mode: str) -> None:
        if where := self._step(line, mode):
            self._announce(where, None, name, (Touch((self._file, owner, name), _mode(mode)),), line, mode)

    def stored(self, value: Any, name: str, owner: str, line: int, mode: str) -> Any:
        self.name(name, owner, line, mode)
        return value

    def store(self, value: Any, number: int) -> Any:
        """Announce the write of `target += value`, whose read was announced with the mode `both`."""
        write = self._begun.pop(number)
        if write is not None:
            subject, touches, line = write
            # A container is extended in place, so that nothing of it is lost.
            in_place = isinstance(value, CONTAINERS) or hasattr(type(value), "__iadd__")
            self._perform(control.this(), subject, touches, line, "changes" if in_place else "writes")
        return value

    # ----

    def _is_alone(self) -> bool:
        return self._step(0, "") is None

    def _step(self, line: int, mode: str) -> Where | None:
        """Return the run and the task whose next step an access is; None if it is none."""
        where = control.here()
        if where is None or getattr(where[1].context, "rank", None) is not None:
            return None  # ranks share nothing
        run, task = where
        if len(run.tasks) == 1:
            return None if asyncio._get_running_loop() is None else where
        return None if line and run.is_one_of_many(task, mode, (self._file, line)) else where

    def _announce(
        self,
        where: Where,
        owner: Any,
        subject: str,
        touches: Touches,
        line: int,
        mode: str,
        number: int = 0,
        is_access: bool = True,
    ) -> None:
        if owner is not None:
            _keep(owner)
        process = where[1].context
        if process is not None and not isinstance(owner, control.Shared):
            # A class or a global has one identity, and in each process a value of its own.
            touches = tuple(Touch((id(process), each.location), each.mode) for each in touches)
        if mode == "both":
            self._perform(where, subject, tuple(Touch(each.location, "read") for each in touches), line, "reads")
            self._begun.push(number, (subject, touches, line))
        else:
            self._perform(where, subject, touches, line, VERBS[mode], is_access)

    def _perform(
        self, where: Where, subject: str, touches: Touches, line: int, verb: str, is_access: bool = True
    ) -> None:
        (run, task), place = where, Place(self._file, line, "")
        operation = Operation(verb, subject, touches, place, is_data=True, is_access=is_access)
        if len(run.tasks) == 1:  # tasks of a loop cannot be interrupted here, but lose updates too
            run.races.step(task.number, task.clock, operation)
        else:
            run.perform(task, operation)


def _is_container(thing: Any) -> bool:
    """Whether it has items that no method of the program stores: a list, or an array."""
    if id(thing) in _owners:
        return True
    if isinstance(thing, CONTAINERS) or not hasattr(type(thing), "__setitem__"):
        return isinstance(thing, CONTAINERS)
    return control.MARK not in getattr(sys.modules.get(type(thing).__module__), "__dict__", {})


def _item_touches(container: Any, key: Any, mode: str) -> Touches:
    """Return what an item's access touches: storing a new key changes the shape, an old one marks the elements."""
    shape, elements = (id(container), "shape"), (id(container), "elements")
    try:
        item: Hashable = (id(container), "item", key if isinstance(key, int | str) else hash(key))
        is_new = isinstance(container, dict) and key not in container
    except TypeError:
        return (Touch(shape, _mode(mode)),)
    if id(container) in _owners:
        return Touch(_of_owner(container, key), _mode(mode)), Touch(shape, _mode(mode) if is_new else "read")
    if mode == "read":
        return Touch(item, "read"), Touch(shape, "read")
    return Touch(item, "write"), Touch(shape, "write" if is_new else "read"), Touch(elements, "mark")


def _attribute(owner: Any, name: str, is_read: bool) -> Hashable | None:
    """Return the location of an attribute; None for methods, properties and what a class computes."""
    if isinstance(owner, ModuleType):
        return (owner.__file__, "", name) if control.MARK in owner.__dict__ else None
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    kind = next((each for each in kinds if name in each.__dict__), None)
    value = None if kind is None else kind.__dict__[name]
    if isinstance(value, CODE):
        return None
    # An attribute that no class has may be added by another thread.
    is_own = kind is None or isinstance(owner, type) or isinstance(value, MemberDescriptorType)
    if is_own or not is_read or name in _dict_of(owner):
        return (id(owner), name)
    return None if hasattr(value, "__get__") else (id(kind), name)


def _dict_of(owner: Any) -> Any:
    try:
        return object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return ()


class _Getter:
    """`operator.attrgetter` and `itemgetter` as they are called by the program."""

    def __init__(self, points: Points, real: Any, *names: Any) -> None:
        self._points, self._names, self._get = points, names, real(*names)
        self._name = GETTERS[real.__name__]

    def __call__(self, thing: Any) -> Any:
        for name in self._names:
            self._points.announce(self._name, thing, name)
        return self._get(thing)

    def __reduce__(self) -> Any:
        return self._get.__reduce__()


#: The dictionaries of attributes that the program has got, and the objects that they belong to.
_owners: dict[int, tuple[Any, Any]] = {}


def _note_owner(owner: Any) -> Any:
    data = vars(owner)
    _owners[id(data)] = owner, data
    return data


def _of_owner(data: Any, name: Any) -> Hashable:
    """Return the location of an attribute that is accessed as an item."""
    owner = _owners[id(data)][0]
    return (owner.__file__, "", name) if isinstance(owner, ModuleType) else (id(owner), name)


#: Objects whose number must not be used again for another object in the same run.
_kept: dict[int, Any] = {}


def _keep(owner: Any) -> None:
    """Keep the identity of an object: by a weak reference where there can be one, so that it is destroyed in time."""
    number = id(owner)
    if number not in _kept:
        try:
            _kept[number] = weakref.ref(owner, lambda _: _kept.pop(number, None))
        except TypeError:
            _kept[number] = owner


def _in_order_of_rank(thing: Any) -> Any:
    """Return a set of strings as a list, in another order on each rank, since each interpreter has its own hashes."""
    rank = control.rank() if isinstance(thing, set | frozenset) else None
    if not rank or not any(isinstance(each, str | bytes) for each in thing):
        return thing
    at = rank % len(thing)
    return [*thing][at:] + [*thing][:at]


def _mapping(view: Any) -> Any:
    return next((each for each in gc.get_referents(view) if isinstance(each, dict)), view)


def _mode(mode: str) -> Mode:
    return "read" if mode == "read" else "write"


def _label(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type | ModuleType) else type(owner).__name__
