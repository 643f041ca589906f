"""Reads a file: its text and its syntax tree, as Python 3 and with coroutines where it is of before."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from pathlib import Path

from paceline.concurrency.check.syntax.tree import dotted, short_name

#: A file with one of these words may have coroutines of before `async def`.
OLD = re.compile(r"@.*\b(coroutine|inlineCallbacks)\b")


UNREADABLE = "PC001"  # the code of the finding for a file of which nothing was checked


class Unreadable(Exception):
    """Raised for a file that cannot be read as Python; the message says why."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


def read(path: Path) -> str:
    """The text of a file, in the encoding that it declares."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    return decode(raw)


def decode(raw: bytes) -> str:
    """Decode source as Python does; what Python refuses is not guessed."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except SyntaxError as error:  # no such encoding, or not that of the first two lines
        raise Unreadable(f"cannot be decoded: {error.msg}") from None
    except LookupError as error:
        raise Unreadable(f"cannot be decoded: {error}") from None
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"cannot be decoded: line {line} is not {error.encoding}", line) from None


def parse(text: str) -> ast.Module:
    """The syntax tree, with coroutines of before `async def` as such."""
    tree = _parse(text)
    return with_coroutines(tree) if OLD.search(text) else tree


def _parse(text: str) -> ast.Module:
    """The syntax tree; Python 2 files are parsed too, where their statements can be rewritten as Python 3."""
    before, null, _ = text.partition("\0")
    if null:  # which Python refuses without saying where it is
        raise Unreadable("cannot be parsed: a null byte", before.count("\n") + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text)
        except SyntaxError as error:
            first = error
        except (RecursionError, MemoryError):  # neither says more, nor where
            raise Unreadable("cannot be parsed: nested too deeply") from None
        except ValueError as error:
            raise Unreadable(f"cannot be parsed: {error}") from None
        try:
            return ast.parse(as_python3(text, first.lineno or 1))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Unreadable(f"cannot be parsed: {first.msg}", first.lineno or 1) from None


# Rewrites Python 2 statements as Python 3, line by line, so that old files can be checked too.
# Only what the Python 3 parser rejects is rewritten: `except X, e`, `raise X, y`, `print x`, `exec x in y`, `0777`,
# `ur""`, `<>` and backquotes, and names called `async`, which became a keyword in Python 3.7. Lines keep their numbers.

ATTEMPTS = 60  # lines that are rewritten at most

_CHANGES: list[tuple[re.Pattern[str], str]] = [
    (re.compile(r"\blambda\s+\([^()]*\)\s*:"), r"lambda _given:"),
    (re.compile(r"^(\s*def\s+\w+\s*\(.*?)\([^()]*\)(?=\s*[,)])"), r"\1_given"),
    (re.compile(r"^(\s*except\s+)(\([^()]*\)|[^,:#]+?)\s*,\s*([\w.]+|\([^()]*\))\s*:"), r"\1\2 as _caught:"),
    # a statement that continues in the next line: what matters is where it leads, and what it calls
    (re.compile(r"^(\s*)raise\s+([\w.]+)\s*,\s*(.*[\\(,%])$"), r"\1return \2, \3"),
    (re.compile(r"^(\s*)print\s+(?:>>\s*)?(?!\()(.*[\\(,%])$"), r"\1_ = \2"),
    (re.compile(r"^(\s*)(.*:\s*)?raise\s+([\w.]+(?:\[\w+\])?)\s*,\s*([^,]+?)(\s*,.*)?$"), r"\1\2raise \3(\4)"),
    (re.compile(r"^(\s*)(.*:\s*)?print\s*>>\s*([^,]+),?\s*(.*?),?\s*$"), r"\1\2print(\4)"),
    (re.compile(r"^(\s*)(.*:\s*)?print\s+(?!\()(.*?),?\s*$"), r"\1\2print(\3)"),
    (re.compile(r"^(\s*)print\s*(\(.*\)\s*%.*)$"), r"\1print(\2)"),
    (re.compile(r"^(\s*)exec\s+(.+?)\s+in\s+(.+?)\s*$"), r"\1exec(\2)"),
    (re.compile(r"^(\s*)exec\s+(?!\()(.+?)\s*$"), r"\1exec(\2)"),
    (re.compile(r"(?<![\w.])0([0-7]+)(?![\w.])"), r"0o\1"),
    (re.compile(r"(?<![\w.])(\d+)[lL]\b"), r"\1"),
    (re.compile(r"\b[uU][rR](?=['\"])"), r"r"),
    (re.compile(r"<>"), r"!="),
    (re.compile(r"`([^`]+)`"), r"repr(\1)"),
]
_CAUGHT = _CHANGES[2]
_NAMED_ASYNC = re.compile(r"\basync\b(?!\s+(?:def|for|with)\b)")


def as_python3(text: str, line: int) -> str:
    """The text with each line that the parser rejects rewritten, as long as that helps."""
    lines = text.replace("\t", "        ").split("\n")
    for number, content in enumerate(lines):
        lines[number] = _NAMED_ASYNC.sub("async_", _CAUGHT[0].sub(_CAUGHT[1], content))
    for _ in range(ATTEMPTS):
        try:
            ast.parse("\n".join(lines))
            break
        except SyntaxError as error:
            number = (error.lineno or line) - 1
        except (ValueError, RecursionError, MemoryError):
            break
        if number >= len(lines) or not _rewrite(lines, number):
            break
    return "\n".join(lines)


def _rewrite(lines: list[str], number: int) -> bool:
    """Apply the first substitution that changes the line; whether there was one."""
    for pattern, better in _CHANGES:
        changed = pattern.sub(better, lines[number])
        if changed != lines[number]:
            lines[number] = changed
            return True
    return False


# Reads coroutines of before `async def` as coroutines, so that every rule of tasks holds for them too.
# A generator that asyncio, tornado or Twisted runs as a coroutine (`@asyncio.coroutine`, `@gen.coroutine`,
# `@defer.inlineCallbacks`) lets others run at `yield from` or `yield`, as `async def` does at `await`. Lines stay.

DECORATORS = ("coroutine", "inlineCallbacks")
LAZY = ("asyncio.coroutine", "types.coroutine")  # nothing runs before it is awaited; of the others, the call starts it


def with_coroutines(tree: ast.Module) -> ast.Module:
    """The tree with decorated generators as `async def`."""
    return _Functions().visit(tree)  # type: ignore[no-any-return]


class _Functions(ast.NodeTransformer):
    """Rewrites the decorated functions, inner ones first."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        decorator = next((d for d in node.decorator_list if short_name(d) in DECORATORS), None)
        if decorator is None:
            return node
        eager = dotted(decorator) not in LAZY
        coroutine = ast.AsyncFunctionDef(**{name: getattr(node, name) for name in node._fields})
        coroutine.body = [_Yields().visit(statement) for statement in node.body]
        coroutine.decorator_list = [d for d in node.decorator_list if d is not decorator or eager]
        return ast.copy_location(coroutine, node)


class _Yields(ast.NodeTransformer):
    """Rewrites what a coroutine waits for, in its own scope."""

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        self.generic_visit(node)
        value = node.value or ast.copy_location(ast.Constant(None), node)
        return ast.copy_location(ast.Await(value), node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Await(node.value), node)

    def visit_With(self, node: ast.With) -> ast.AST:
        """`with (yield from lock):` takes a lock of asyncio."""
        waits = [item for item in node.items if isinstance(item.context_expr, ast.YieldFrom | ast.Yield)]
        locks = [item.context_expr.value for item in waits]  # type: ignore[attr-defined]
        if len(locks) != len(node.items) or None in locks or any(isinstance(lock, ast.Call) for lock in locks):
            return self.generic_visit(node)
        for item, lock in zip(waits, locks, strict=True):
            item.context_expr = lock
        self.generic_visit(node)
        return ast.copy_location(ast.AsyncWith(node.items, node.body), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node
