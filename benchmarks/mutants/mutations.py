"""Small faults that can be put into a file: one operator, constant, condition or statement changed each time."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[tuple[str, type[ast.cmpop]], ...]] = {
    ast.Eq: (("comparison", ast.NotEq),), ast.NotEq: (("comparison", ast.Eq),),
    ast.Lt: (("boundary", ast.LtE), ("comparison", ast.Gt)), ast.LtE: (("boundary", ast.Lt), ("comparison", ast.GtE)),
    ast.Gt: (("boundary", ast.GtE), ("comparison", ast.Lt)), ast.GtE: (("boundary", ast.Gt), ("comparison", ast.LtE)),
    ast.In: (("comparison", ast.NotIn),), ast.NotIn: (("comparison", ast.In),),
    ast.Is: (("comparison", ast.IsNot),), ast.IsNot: (("comparison", ast.Is),),
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What is not run, or only says something: a fault there is none.
PASSED = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom, ast.Raise, ast.Global, ast.Nonlocal, ast.match_case)
UNREAD = ("annotation", "returns", "decorator_list", "bases")
BRANCHES = (ast.If, ast.While, ast.IfExp)
NEVER_RUN = ("TYPE_CHECKING", "__name__ == '__main__'")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
RARE = 0.25  # how often two arguments are exchanged: most often any test notices
DELETED = (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


class Mutant(NamedTuple):
    file: str
    line: int
    kind: str
    before: str
    after: str
    span: tuple[int, int]  # bytes of the file that `text` replaces
    text: str
    lines: tuple[int, int]  # of the statement: a test that runs any of them may notice
    inside: bool  # a function: else it is run when the module is imported

    def apply(self, source: bytes) -> bytes:
        return source[: self.span[0]] + self.text.encode() + source[self.span[1] :]


class _Found(NamedTuple):
    node: ast.AST
    kind: str
    changed: ast.AST | str
    lines: tuple[int, int]
    inside: bool


def draw(tree: Path, folders: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """As many mutants, each on another line; every line where one is possible is as likely as another. A larger count
    begins with the mutants of a smaller one.
    """
    files = sorted({file for folder in folders for file in _files(tree / folder)})
    chance = random.Random(seed)
    lines = [(file, line) for file in files for line in sorted({each.line for each in _mutants(tree, file)})]
    chance.shuffle(lines)
    drawn = []
    for file, line in lines[:count]:
        possible = [each for each in _mutants(tree, file) if each.line == line]
        drawn += chance.choices(possible, [RARE if each.kind == "arguments" else 1.0 for each in possible])
    return drawn


def _files(place: Path) -> list[Path]:
    found = [place] if place.suffix == ".py" else list(place.rglob("*.py"))
    if not found:
        raise SystemExit(f"{place} holds no Python file")
    return found


_known: dict[Path, list[Mutant]] = {}


def _mutants(tree: Path, file: Path) -> list[Mutant]:
    if file not in _known:
        source = file.read_bytes()
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        found = _walk(ast.parse(source), (0, 0), False)
        made = [_made(str(file.relative_to(tree)), source, starts, each) for each in found]
        _known[file] = [each for each in made if _compiles(each.apply(source))]
    return _known[file]


def _made(file: str, source: bytes, starts: list[int], found: _Found) -> Mutant:
    node: Any = found.node
    span = (starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset)
    after = found.changed if isinstance(found.changed, str) else ast.unparse(found.changed)
    pad = "\n" * (node.end_lineno - node.lineno)  # lines that follow keep their numbers
    text = after + pad if isinstance(node, ast.stmt) else f"({after}{pad})"
    return Mutant(
        file, node.lineno, found.kind, ast.unparse(node)[:120], after[:120], span, text, found.lines, found.inside
    )


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _walk(node: ast.AST, lines: tuple[int, int], inside: bool) -> Iterator[_Found]:
    if isinstance(node, ast.stmt):
        lines = (node.lineno, _header_end(node))
        yield from (_Found(node, kind, changed, lines, inside) for kind, changed in _of_statement(node))
    else:
        yield from (_Found(node, kind, changed, lines, inside) for kind, changed in _of_expression(node))
    if isinstance(node, PASSED) or (isinstance(node, ast.If) and ast.unparse(node.test) in NEVER_RUN):
        return
    conditions = node.ifs if isinstance(node, ast.comprehension) else [node.test] if isinstance(node, BRANCHES) else []
    for test in conditions:
        yield _Found(test, "condition", ast.UnaryOp(ast.Not(), test), lines, inside)
    for name, value in ast.iter_fields(node):
        if name in UNREAD or (isinstance(node, ast.ClassDef) and name == "keywords"):
            continue
        runs_later = inside or (isinstance(node, FUNCTIONS) and name == "body")
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, lines, runs_later)


def _header_end(node: ast.stmt) -> int:
    """The last line of a statement before the statements in it."""
    body = getattr(node, "body", None)
    return body[0].lineno - 1 if body and body[0].lineno > node.lineno else node.end_lineno or node.lineno


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.AST | str]]:
    call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if call or stored or isinstance(node, DELETED):
        yield "deleted", "pass"
    if isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "returned", "return None"
    if isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        yield "arithmetic", _with(node, op=OPERATORS[type(node.op)]())


def _of_expression(node: ast.AST) -> Iterator[tuple[str, ast.AST | str]]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            for kind, other in COMPARISONS[type(op)]:
                yield kind, _with(node, ops=[*node.ops[:place], other(), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not (_text(node.left) or _text(node.right)):
        yield "arithmetic", _with(node, op=OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "and/or", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "negation", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", repr(node.value + 1)
        yield "constant", repr(node.value - 1)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST | str]]:
    if isinstance(node.func, ast.Name) and node.func.id in TWINS:
        yield "twin", _with(node, func=ast.Name(TWINS[node.func.id]))
    first = node.args[:2]
    if len(first) == 2 and not any(isinstance(each, ast.Starred) for each in first):
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "isinstance"):
            return  # no other result, or none at all
        if ast.unparse(first[0]) != ast.unparse(first[1]):
            yield "arguments", _with(node, args=[first[1], first[0], *node.args[2:]])


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
