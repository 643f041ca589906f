"""Files that several programs check, create, replace and rewrite."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paceline.concurrency.check.libraries.catalogue import RANK_CALLS, RANK_ZERO_FIRST
from paceline.concurrency.check.rules.rule import Witness
from paceline.concurrency.check.summaries import Facts
from paceline.concurrency.check.syntax.declarations import Function
from paceline.concurrency.check.syntax.tree import (
    around,
    contexts_around,
    dotted,
    enclosing,
    is_constant,
    is_within,
    keyword,
    last_line,
    parent,
    receiver_of,
    short_name,
)
from paceline.concurrency.check.threads.evidence import IMPORTS, of_threads
from paceline.concurrency.check.threads.sharing import may_overlap

MAKES = ("makedirs", "mkdir")
LISTS = ("listdir", "scandir")
#: Classes whose objects are run by others.
TASK = re.compile(r"(Task|Job|Worker|Request|Runnable|Download(er)?|Upload(er)?)$")
#: Folders whose contents come and go by themselves.
VOLATILE = re.compile(r"/(dev|proc|sys|run|var/run|var/lock)(/|$)")
#: A folder of the user or of the machine, which every program that is started finds.
SHARED = re.compile(r"home|expanduser|environ|cache|conf|user|tmp|temp|lock|pid|sock|share", re.I)
#: A helper that makes a folder for its callers.
MAKER = re.compile(r"mkdir|make_?dir|(en|as)sure|create_?(dir|folder|path)", re.I)
REMOVES = ("remove", "unlink", "rmtree", "rmdir")
#: Words in the names of files by which programs that run at the same time know of each other.
BETWEEN_PROGRAMS = ("lock", "pid", "sock")


def exists_then_create(facts: Facts) -> Iterator[Witness]:
    """Report creations, removals and writes of a path inside a test of its existence."""
    yield from _temporary_name(facts)
    yield from _lock_files(facts)
    yield from _listed(facts)
    yield from _recreated(facts)
    ranks: bool | None = None  # computed only once a suspicious test is found
    for fn in facts.module.functions:
        for test in fn.tests:
            if not isinstance(test, ast.If):
                continue
            check = next(_asks(test), None)
            if check is None or facts.sequences.tests_around(test.test, fn) or facts.held_at(test, fn):
                continue
            if _in_turn(fn, facts):
                continue
            if ranks is None:
                ranks = _ranks(facts)
            path = _path_of(check)
            for call in fn.calls:
                if _decided_by(call, test) and _makes(call, path, fn, ranks) and not foreseen(call):
                    sure = _confidence(path, fn, ranks or _meets_others(fn, facts))
                    yield Witness(call, fn, confidence=sure, path=path, test=test, instead=_instead(call))


def _instead(call: ast.Call) -> str:
    name = short_name(call.func)
    if name in MAKES or name in REMOVES:
        how = "exist_ok=True" if name in MAKES else "missing_ok=True, or ignore_errors=True"
        return f"do it without a check ({how})"
    return "let one rank do it while the others wait, or write to a temporary name and rename it"


def _temporary_name(facts: Facts) -> Iterator[Witness]:
    """`tempfile.mktemp()`: a name that no file had when it was chosen."""
    for fn in facts.module.functions:
        for call in fn.calls:
            if short_name(call.func) == "mktemp" and facts.module.canonical(call.func) == "tempfile.mktemp":
                yield Witness(call, fn, "temporary-name")
                break


def _recreated(facts: Facts) -> Iterator[Witness]:
    """`rmtree(folder)` and then `folder.mkdir()`: another program may have created the folder in between."""
    for fn in facts.module.functions:
        calls = {path: c for c in fn.calls if short_name(c.func) == "rmtree" and (path := _path_of(c))}
        for call in fn.calls if calls else ():
            path = _path_of(call)
            if short_name(call.func) not in MAKES or path not in calls or calls[path].lineno > call.lineno:
                continue
            # Whoever comes second is content with what it finds.
            if is_constant(keyword(call, "exist_ok"), True) or foreseen(call):
                continue
            # Among ranks one of them was chosen to do it.
            if facts.sequences.tests_around(call, fn):
                continue
            if _confidence(path, fn, _meets_others(fn, facts)) >= 0.5:
                yield Witness(call, fn, "recreated", path=path, removed_at=calls[path].lineno)
                break


def _path_of(call: ast.Call) -> str:
    """The path that a function of `os` or `shutil`, or a method of a path, is about."""
    receiver = receiver_of(call)
    owner = dotted(receiver) if receiver is not None else ""
    if owner and owner.partition(".")[0] not in ("os", "shutil"):
        return owner
    return ast.unparse(call.args[0]) if call.args else ""


def _listed(facts: Facts) -> Iterator[Witness]:
    """`if isdir("/dev/disk"): listdir("/dev/disk")`: the system may have removed the folder in between."""
    for fn in facts.module.functions:
        for call in fn.calls:
            test, path = enclosing(call, ast.If), ast.unparse(call.args[0]) if call.args else ""
            if short_name(call.func) not in LISTS or not path or not isinstance(test, ast.If) or foreseen(call):
                continue
            value = fn.bound.get(path, call.args[0])
            named = isinstance(value, ast.Constant) and isinstance(value.value, str) and VOLATILE.match(value.value)
            if named and any(ask.args and ast.unparse(ask.args[0]) == path for ask in _asks(test)):
                yield Witness(call, fn, "listed", path=path, test=test)


def _lock_files(facts: Facts) -> Iterator[Witness]:
    """A file that tells others of this program, or of its claim, written after a look whether there is one."""
    for fn in facts.module.functions:
        for test in fn.tests:
            check = next(_asks(test), None)
            path = _path_of(check) if check is not None else ""
            between = any(word in f"{fn.qualname} {path}".lower() for word in ("lock", "pid"))
            if not path or not (between or (_claims(test, fn) and _by_several(fn, facts))):
                continue
            if isinstance(test, ast.If) and not _leaves(test):
                continue
            call = next((c for c in fn.calls if c.lineno > test.lineno and _opens_to_write(c, path)), None)
            if call is not None and not facts.held_at(call, fn):
                yield Witness(call, fn, "lock-file", path=path, test=test)


def _claims(test: ast.AST, fn: Function) -> bool:
    """Whether a function answers yes to one caller only: no where a test finds the file, and yes where it makes it."""
    last = test.body[-1] if isinstance(test, ast.If) else None
    refused = isinstance(last, ast.Return) and (_is_none(last.value) or is_constant(last.value, False))
    return refused and any(r is not last and not _is_none(r.value) for r in fn.returns)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or is_constant(value, None)


def _opens_to_write(call: ast.Call, path: str) -> bool:
    """Whether a call writes to this path, or opens it for that, whether or not the file exists by then."""
    method = isinstance(call.func, ast.Attribute) and dotted(call.func.value) == path
    mode = keyword(call, "mode", 0 if method else 1)
    opens = short_name(call.func) == "open" and _path_of(call) == path
    writes = method and short_name(call.func) in ("write_text", "write_bytes", "touch")
    return writes or (opens and isinstance(mode, ast.Constant) and str(mode.value).startswith("w"))


def _leaves(test: ast.If) -> bool:
    """Whether the function is left, or the program ended, where the path exists."""
    last = test.body[-1]
    ends = (
        isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and short_name(last.value.func).endswith("exit")
    )
    return not isinstance(test.test, ast.UnaryOp) and (ends or isinstance(last, ast.Return | ast.Raise))


def _decided_by(call: ast.Call, test: ast.If) -> bool:
    """Whether a call is in a branch of the test, or comes after it where the test returns if the path exists."""
    if enclosing(call, ast.If) is test:
        first = is_within(call, test.body)
        plain = isinstance(test.test, ast.Call)  # what exists is not made
        return not (short_name(call.func) in MAKES and plain and first)
    leaves = isinstance(test.body[-1], ast.Return) and not isinstance(test.test, ast.UnaryOp | ast.BoolOp)
    return leaves and call.lineno > last_line(test) and enclosing(call, ast.If) is enclosing(test, ast.If)


def _ranks(facts: Facts) -> bool:
    """Whether this file runs on all ranks of a job at once: it asks for its rank or calls a collective."""
    return any(
        short_name(c.func) in RANK_CALLS or facts.sequences.collective(c, fn)
        for fn in facts.module.functions
        for c in fn.calls
    )


def _meets_others(fn: Function, facts: Facts) -> bool:
    """Whether the file uses multiprocessing, or threads run the function: also as a task that another file starts."""
    if any(origin.startswith("multiprocessing") for origin in facts.module.imports.values()) or facts.threads_of(fn):
        return True
    task = fn.cls is not None and fn.name in ("__call__", "run") and TASK.search(fn.cls.name)
    return bool(task) and of_threads(fn.cls, facts) >= IMPORTS


def _confidence(path: str, fn: Function, several: bool) -> float:
    """How likely two programs meet there: by what the file starts, whose folder it is, and who calls the function."""
    if several:
        return 0.65
    named = path.partition("(")[0].partition(".")[0]
    origins = _origin(named, fn)
    if SHARED.search(" ".join([fn.name, path, *(ast.unparse(value) for value in origins)])):
        return 0.6
    parts = {named} | {n.id for value in origins for n in ast.walk(value) if isinstance(n, ast.Name)}
    from_parameter = any(not parts.isdisjoint(scope.parameters) for scope in fn.scopes() if scope.parameters)
    if from_parameter and MAKER.search(fn.name):
        return 0.55
    return 0.5 if from_parameter else 0.45


def _origin(name: str, fn: Function) -> list[ast.expr]:
    """What a variable is computed from, in this function and those around it, over a few assignments."""
    origins: list[ast.expr] = []
    names = {name}
    for _ in range(3):
        values = [scope.bound[n] for n in names for scope in fn.scopes() if n in scope.bound]
        origins += values
        names = {n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name)} - names
    return origins


def _in_turn(fn: Function, facts: Facts) -> bool:
    """Whether all calls of a function are inside a context manager that lets one rank go first."""
    around = [enclosing(site, ast.With) for site in facts.module.objects.sites(fn)]
    return bool(around) and all(isinstance(w, ast.With) and _lets_one_go_first(w, facts) for w in around)


def _lets_one_go_first(node: ast.With, facts: Facts) -> bool:
    managers = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    named = any(short_name(m.func) in RANK_ZERO_FIRST for m in managers)
    functions = (facts.module.function_named(m.func, facts.module.top) for m in managers)
    return named or any(fn is not None and fn.generator and facts.sequences.operations(fn) for fn in functions)


def _makes(call: ast.Call, path: str, fn: Function, ranks: bool) -> bool:
    """Whether the call creates this path, or removes what others know of; among ranks, also whether it writes it."""
    name = short_name(call.func)
    places = [ast.unparse(a) for a in call.args] + [dotted(getattr(call.func, "value", call.func))]
    if name in MAKES:
        return path in places and not is_constant(keyword(call, "exist_ok"), True)
    words = f"{fn.name} {path}".lower()
    # Among processes that were started apart, only files by which they know of each other, and caches, are in use by
    # several at once; elsewhere a program removes files of its own.
    between = any(word in path.lower() for word in BETWEEN_PROGRAMS) or "cache" in words
    if not ranks and not (between and name in REMOVES):
        return False
    if name in REMOVES:
        return path in places and keyword(call, "ignore_errors") is None and keyword(call, "missing_ok") is None
    return name in ("save", "savez", "dump") and path in places[:2] and len(call.args) > 1


#: What puts a file in the place of another one.
MOVES = ("rename", "renames", "move", "symlink", "link", "symlink_to", "hardlink_to")


def removed_first(facts: Facts) -> Iterator[Witness]:
    """Report removals under a test of existence that are followed by a move to the same path."""
    for fn in facts.module.functions:
        moves = [c for c in fn.calls if short_name(c.func) in MOVES and len(c.args) + len(c.keywords) > 1]
        for removal in fn.calls if moves else ():
            path = _path_of(removal) if short_name(removal.func) in ("remove", "unlink") else ""
            test = enclosing(removal, ast.If) if path else None
            if test is None or not any(_asks(test)) or path not in ast.unparse(test.test):
                continue
            move = next((m for m in moves if m.lineno > removal.lineno and _follows(m, test) and _to(m, path)), None)
            # Windows cannot rename onto a file that exists, so the removal is needed there.
            apart = _of_one_system(removal) or foreseen(removal) or facts.held_at(removal, fn)
            if move is not None and not apart:
                links = short_name(move.func) in ("symlink", "link")
                action = "linked" if links else "moved there"
                instead = "make the link under another name, then call" if links else "use"
                yield Witness(removal, fn, path=path, action=action, move=move, instead=instead)
                break


def _follows(move: ast.Call, test: ast.If) -> bool:
    """Whether a call comes after the test in the same block, or in a block there."""
    at: ast.AST | None = move
    while at is not None and parent(at) is not parent(test):
        at = parent(at)
    return at is not None and at is not test


def _to(move: ast.Call, path: str) -> bool:
    """Whether a call puts a file at this path."""
    target = keyword(move, "dst", 1)
    if target is None:
        target = keyword(move, "target", 0)
    return target is not None and ast.unparse(target) == path


def _of_one_system(node: ast.AST) -> bool:
    """Whether this is done on one operating system only: where no file can take the place of another one."""
    return any(_SYSTEM.search(ast.unparse(test.test)) for test in around(node, ast.If))


_SYSTEM = re.compile(r"os\.name|platform|windows|win32|\bnt\b", re.I)


LOCKS = ("flock", "lockf", "FileLock", "locking", "SoftFileLock")


def file_rewritten(facts: Facts) -> Iterator[Witness]:
    """Report functions, run by several processes or threads, that read a file and then rewrite it."""
    for fn in facts.module.functions:
        opened = [c for c in fn.calls if dotted(c.func) in ("open", "io.open") and c.args] if facts.roots else []
        for write in (c for c in opened if _mode(c).startswith("w")):
            path = ast.unparse(write.args[0])
            reads = (c for c in opened if _mode(c)[:1] in ("", "r") and c.lineno < write.lineno)
            read = next((c for c in reads if ast.unparse(c.args[0]) == path), None)
            if read is None or _locked(fn, write, facts) or not _by_several(fn, facts):
                continue
            yield Witness(write, fn, path=path, read=read)
            break


def _mode(call: ast.Call) -> str:
    mode = keyword(call, "mode", 1)
    return str(mode.value) if isinstance(mode, ast.Constant) else "" if mode is None else "?"


def _locked(fn: Function, write: ast.Call, facts: Facts) -> bool:
    """Whether a lock of the program or of the file is held."""
    entered = any("lock" in ast.unparse(context).lower() for context in contexts_around(write))
    return entered or bool(facts.held_at(write, fn)) or any(short_name(c.func) in LOCKS for c in fn.calls)


def _by_several(fn: Function, facts: Facts) -> bool:
    """Whether several processes, or threads, run a function at once."""
    tags = facts.reached.get(id(fn), set())
    several = {f"{r.kind}:{r.function.qualname}" for r in facts.roots if r.kind == "process" and r.several}
    return bool(tags & several) or may_overlap(fn, fn, facts)


# Checks whether a file or folder exists, and handlers for one that another process has created or removed since.

ASKS = ("exists", "lexists", "isdir", "isfile", "islink", "is_dir", "is_file", "is_symlink")
_BY_NAME = {"FileExistsError", "FileNotFoundError"}
_ANY = {"OSError", "IOError", "EnvironmentError", "error", "WindowsError", "Exception", "BaseException"}
_TELLS = re.compile(r"errno|EEXIST|ENOENT|exists|isdir|isfile|is_dir|is_file|islink|Errno")


def foreseen(call: ast.Call) -> bool:
    """Whether the error of the process that comes second is caught: by its name, or by a handler that tests it."""
    at: ast.AST = call
    while (around := parent(at)) is not None and not isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
        if isinstance(around, ast.Try) and at in around.body:
            for handler in around.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                names = {short_name(kind) for kind in kinds if kind is not None} or {"BaseException"}
                if names & _BY_NAME or (names & _ANY and _distinguishes(handler)):
                    return True
        if isinstance(around, ast.With) and any("suppress" in ast.unparse(i.context_expr) for i in around.items):
            return True
        at = around
    return False


def _distinguishes(handler: ast.ExceptHandler) -> bool:
    """Whether a handler asks what went wrong, or continues whatever it was."""
    text = ast.unparse(handler)
    leaves = any(isinstance(n, ast.Raise | ast.Return) for n in ast.walk(handler))
    return _TELLS.search(text) is not None or not leaves


def _asks(test: ast.If | ast.While | ast.IfExp) -> Iterator[ast.Call]:
    """The calls of a test that ask whether a file exists."""
    return (n for n in ast.walk(test.test) if isinstance(n, ast.Call) and short_name(n.func) in ASKS)
