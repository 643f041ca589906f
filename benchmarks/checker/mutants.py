"""How many guards of well-kept code the checker misses when they are taken away.

    python benchmarks/checker/mutants.py SITE_PACKAGES STANDARD_LIBRARY [--part aside] [--only unlocked] [--verbose]

A mutant is a file of an installed package from which one guard was removed: a lock, an `await`, a copy, the `finally`
around a release. It counts as found if the checker reports something of the right family that it does not report of
the file as it is, with the finding or a step of its story within NEAR lines. Packages are divided by a hash of their
names: misses of the part `seen` are looked at, those of the part `aside` are not.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from paceline.concurrency.check.engine import check_text, is_relevant
from paceline.concurrency.check.reporting.findings import Finding
from paceline.concurrency.check.syntax.tree import dotted

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]
from harness import write  # noqa: E402

NEAR = 10
OF_ONE_PACKAGE = 4  # mutants of each kind
OF_ONE_FILE = 2
LONGEST = 4_000  # lines of a file
TESTS = re.compile(r"(^|/)(tests?|testing|test_[^/]*|lib2to3|idlelib)(/|\.py$)")
MUTATING = {
    "append", "add", "discard", "clear", "extend", "update", "setdefault", "pop", "popleft", "popitem", "insert",
    "remove", "appendleft",
}  # fmt: skip
COLLECTIVES = {"all_reduce", "all_gather", "barrier", "broadcast", "all_gather_object", "reduce", "all_to_all"}
Edit = tuple[list[str], int, int]  # the lines of the mutant, the first and the last that matter


class Kind(NamedTuple):
    """What is taken away."""

    word: str  # a file without it has no such guard
    family: str  # of the rules that must report it
    edits: Callable[[list[str], ast.Module], Iterator[Edit]]


def indent(line: str) -> str:
    """The white space at the beginning of a line."""
    return line[: len(line) - len(line.lstrip())]


def replaced(lines: list[str], first: int, last: int, new: list[str]) -> list[str]:
    """The lines with those from first to last replaced; both count from 1."""
    return [*lines[: first - 1], *new, *lines[last:]]


def dedented(lines: list[str], first: int, last: int) -> list[str]:
    """The lines from first to last with one level of indentation less, that of the first."""
    inner = indent(lines[first - 1])
    outer = inner[4:] if inner.startswith("    ") else inner[1:]
    return [outer + line[len(inner) :] if line.startswith(inner) else line for line in lines[first - 1 : last]]


def classes(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, list[ast.FunctionDef]]]:
    """The classes and their methods but constructors."""
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef):
            yield cls, [f for f in cls.body if isinstance(f, ast.FunctionDef) and f.name != "__init__"]


def own_lock(statement: ast.AST) -> str:
    """The attribute of `with self._lock:`; empty for another statement."""
    if not isinstance(statement, ast.With) or len(statement.items) != 1:
        return ""
    name = dotted(statement.items[0].context_expr)
    plain = re.fullmatch(r"self\.\w*(lock|mutex|LOCK)\w*", name) and "()" not in name
    return name if plain and statement.body[0].lineno > statement.lineno else ""


def used(nodes: list[ast.stmt]) -> set[str]:
    """The attributes of the own object that statements use."""
    found = (n for s in nodes for n in ast.walk(s))
    return {n.attr for n in found if isinstance(n, ast.Attribute) and dotted(n.value) == "self"}


def changed(nodes: list[ast.stmt]) -> set[str]:
    """The attributes of the own object that statements change by more than assigning a constant."""
    found: set[str] = set()
    for node in (n for s in nodes for n in ast.walk(s)):
        if isinstance(node, ast.AugAssign | ast.Delete | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            constant = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in targets:
                inner = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(inner, ast.Attribute) and dotted(inner.value) == "self":
                    found |= {inner.attr} if not constant or inner is not target else set()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
            owner = node.func.value
            if isinstance(owner, ast.Attribute) and dotted(owner.value) == "self":
                found.add(owner.attr)
    return found


def guarded(tree: ast.Module) -> Iterator[tuple[ast.With, set[str]]]:
    """`with self._lock:` and what it changes that other methods use under the same lock."""
    for _, methods in classes(tree):
        blocks = [(f, w) for f in methods for w in ast.walk(f) if own_lock(w)]
        for fn, block in blocks:
            assert isinstance(block, ast.With)
            others = [w for f, w in blocks if f is not fn and own_lock(w) == own_lock(block)]
            shared = changed(block.body) & {a for w in others if isinstance(w, ast.With) for a in used(w.body)}
            if shared:
                yield block, shared


def unlocked(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """The body of `with self._lock:` is left without it."""
    for block, _ in guarded(tree):
        at, first, last = block.lineno, block.body[0].lineno, block.end_lineno or block.lineno
        yield replaced(lines, at, last, dedented(lines, first, last)), at, last


def checked_outside(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """The test of `with self._lock: if test: change` moves before the lock."""
    for block, shared in guarded(tree):
        test = block.body[0]
        if len(block.body) != 1 or not isinstance(test, ast.If) or test.orelse or test.body[0].lineno == test.lineno:
            continue
        if not shared & changed(test.body) & used([ast.Expr(test.test)]):
            continue
        one, two = block.lineno, test.body[0].lineno
        outer, inner = indent(lines[one - 1]), indent(lines[test.lineno - 1])
        new = [f"{outer}if {ast.unparse(test.test)}:", f"{inner}with {own_lock(block)}:"]
        yield replaced(lines, one, two - 1, new), one, block.end_lineno or one


def not_awaited(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """`await self.flush()`, a coroutine of the same class, becomes `self.flush()`."""
    for cls in ast.walk(tree):
        coroutines = {f.name for f in ast.walk(cls) if isinstance(f, ast.AsyncFunctionDef)} if cls_of(cls) else set()
        for node in ast.walk(cls) if coroutines else ():
            call = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Await) else None
            name = dotted(call.func) if isinstance(call, ast.Call) else ""
            if isinstance(node, ast.Expr) and name.startswith("self.") and name[5:] in coroutines:
                line = lines[node.lineno - 1].replace("await ", "", 1)
                yield replaced(lines, node.lineno, node.lineno, [line]), node.lineno, node.lineno


def cls_of(node: ast.AST) -> bool:
    """Whether this is a class."""
    return isinstance(node, ast.ClassDef)


def not_copied(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """`for x in list(self.items)` becomes `for x in self.items`, in a class that has a lock or a thread."""
    for cls, methods in classes(tree):
        source = "\n".join(lines[cls.lineno - 1 : cls.end_lineno])
        if not re.search(r"\b(Lock|RLock|Thread|ThreadPoolExecutor)\(", source):
            continue
        for node in (n for f in methods for n in ast.walk(f) if isinstance(n, ast.For)):
            call = node.iter
            whole = isinstance(call, ast.Call) and dotted(call.func) in ("list", "tuple") and len(call.args) == 1
            if isinstance(call, ast.Call) and whole and re.fullmatch(r"self\.\w+(\.\w+\(\))?", dotted(call.args[0])):
                line = lines[node.lineno - 1].replace(ast.unparse(call), ast.unparse(call.args[0]), 1)
                yield replaced(lines, node.lineno, node.lineno, [line]), node.lineno, node.end_lineno or node.lineno


def leaked(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """`finally: lock.release()` becomes a plain release at the end."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try) or node.handlers or len(node.finalbody) != 1:
            continue
        last = node.finalbody[0]
        called = dotted(last.value.func) if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else ""
        at = next((n for n in range(last.lineno - 1, node.lineno, -1) if lines[n - 1].strip() == "finally:"), 0)
        if re.search(r"(lock|mutex|cond\w*)\.release$", called, re.IGNORECASE) and at:
            body = [*dedented(lines, node.body[0].lineno, at - 1), *dedented(lines, last.lineno, last.lineno)]
            yield replaced(lines, node.lineno, last.lineno, body), node.lineno, last.lineno


def waited_once(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """`while` around a `wait()` of a condition becomes `if`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and len(node.body) == 1 and not isinstance(node.test, ast.Constant):
            text = ast.unparse(node.body[0])
            if re.search(r"(cond\w*|empty|full|idle|lock)\.wait\(", text, re.IGNORECASE) and "\n" not in text:
                line = lines[node.lineno - 1].replace("while ", "if ", 1)
                yield replaced(lines, node.lineno, node.lineno, [line]), node.lineno, node.lineno + 1


def taken_again(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """A method that takes the lock is called where it is held."""
    for cls, methods in classes(tree):
        source = "\n".join(lines[cls.lineno - 1 : cls.end_lineno])
        plain = {f"self.{name}" for name in re.findall(r"self\.(\w+) = (?:threading\.)?Lock\(\)", source)}
        first = [(f, w) for f in methods for w in f.body if own_lock(w) in plain]
        for fn, block in first:
            for other, _ in (pair for pair in first if pair[0] is not fn and own_lock(pair[1]) == own_lock(block)):
                if len(other.args.args) == 1 and not other.decorator_list and isinstance(block, ast.With):
                    at = block.body[0].lineno
                    call = f"{indent(lines[at - 1])}self.{other.name}()"
                    yield replaced(lines, at, at - 1, [call]), block.lineno, at
                    break


def one_rank(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """A collective is called by rank 0 only."""
    for node in ast.walk(tree):
        called = dotted(node.value.func) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else ""
        module, _, name = called.rpartition(".")
        if isinstance(node, ast.Expr) and module in ("dist", "torch.distributed") and name in COLLECTIVES:
            space, last = indent(lines[node.lineno - 1]), node.end_lineno or node.lineno
            body = ["    " + line for line in lines[node.lineno - 1 : last]]
            test = f"{space}if {module}.get_rank() == 0:"
            yield replaced(lines, node.lineno, last, [test, *body]), node.lineno, last + 1


def created_unasked(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """`os.makedirs(path, exist_ok=True)` becomes a check and a creation."""
    for node in ast.walk(tree):
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or dotted(call.func) != "os.makedirs" or not call.args:
            continue
        if any(k.arg == "exist_ok" for k in call.keywords):
            space, path = indent(lines[call.lineno - 1]), ast.unparse(call.args[0])
            new = [f"{space}if not os.path.exists({path}):", f"{space}    os.makedirs({path})"]
            yield replaced(lines, call.lineno, call.end_lineno or call.lineno, new), call.lineno, call.lineno + 1


def set_twice(lines: list[str], tree: ast.Module) -> Iterator[Edit]:
    """`future.set_result()` is called without `if not future.done():` around it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test).endswith(".done()"):
            name = ast.unparse(node.test).removeprefix("not ")[:-7]
            if re.match(rf"{re.escape(name)}\.set_(result|exception)\(", ast.unparse(node.body[0])):
                first, last = node.body[0].lineno, node.end_lineno or node.lineno
                yield replaced(lines, node.lineno, last, dedented(lines, first, last)), node.lineno, last


KINDS = {
    "unlocked": Kind("with self.", "PC4", unlocked),
    "checked outside": Kind("with self.", "PC4", checked_outside),
    "not copied": Kind("(self.", "PC4", not_copied),
    "not awaited": Kind("await self.", "PC3", not_awaited),
    "set twice": Kind(".done()", "PC3", set_twice),
    "leaked": Kind(".release()", "PC1", leaked),
    "taken again": Kind("Lock()", "PC1", taken_again),
    "waited once": Kind(".wait(", "PC2", waited_once),
    "one rank": Kind("dist", "PC5", one_rank),
    "created unasked": Kind("os.makedirs", "PC4", created_unasked),
}


def packages(folders: list[Path]) -> dict[str, list[Path]]:
    """Package -> its files, without tests, in an order that says nothing."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for file in folder.rglob("*.py"):
            inside = file.relative_to(folder).as_posix()
            if not TESTS.search(inside) and "site-packages" not in inside and not inside.startswith("pip/"):
                found.setdefault(inside.partition("/")[0], []).append(file)
    for files in found.values():
        files.sort(key=lambda file: hashlib.sha256(file.name.encode()).hexdigest())
    return dict(sorted(found.items()))


def part_of(package: str) -> str:
    """Whether the misses in a package may be looked at."""
    return ("seen", "aside")[int(hashlib.sha256(package.encode()).hexdigest(), 16) % 2]


def mutants(files: list[Path], only: str) -> Iterator[tuple[str, Path, str, Edit]]:
    """Some mutants of each kind of one package: the kind, the file, its text and the edit."""
    made: Counter[str] = Counter()
    for file in files:
        text = file.read_text(errors="replace")
        wanted = [k for k, kind in KINDS.items() if kind.word in text and made[k] < OF_ONE_PACKAGE and only in ("", k)]
        if not wanted or text.count("\n") > LONGEST or not is_relevant("", text):
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for kind in wanted:
            for edit in list(KINDS[kind].edits(text.split("\n"), tree))[:OF_ONE_FILE]:
                if made[kind] < OF_ONE_PACKAGE and parses(edit[0]):
                    made[kind] += 1
                    yield kind, file, text, edit


def parses(lines: list[str]) -> bool:
    """Whether the lines are a program still."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def is_found(kind: Kind, before: list[Finding], edit: Edit) -> bool:
    """Whether the checker reports what was taken away."""
    lines, first, last = edit
    known = {(f.rule, f.function, f.about) for f in before}
    for found in check_text("module.py", "\n".join(lines)):
        near = any(first - NEAR <= line <= last + NEAR for line in [found.line, *(s.line for s in found.story)])
        if near and found.rule.startswith(kind.family) and (found.rule, found.function, found.about) not in known:
            return True
    return False


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folders", type=Path, nargs="+")
    options.add_argument("--part", default="seen", choices=("seen", "aside"))
    options.add_argument("--only", default="", help="one kind of mutants", choices=("", *KINDS))
    options.add_argument("--verbose", action="store_true", help="name the misses")
    given = options.parse_args()
    tally = {kind: [0, 0] for kind in KINDS}
    for package, files in packages(given.folders).items():
        for kind, file, text, edit in mutants(files, given.only) if part_of(package) == given.part else ():
            hit = is_found(KINDS[kind], check_text("module.py", text), edit)
            tally[kind][0] += 1
            tally[kind][1] += hit
            if given.verbose and not hit:
                print(f"{kind}\t{file}\t{edit[1]}-{edit[2]}", flush=True)
    for kind, (made, found) in tally.items():
        print(f"{kind:<16} {found:>4} of {made}")
    if not given.only:
        write({kind: {"mutants": made, "found": found} for kind, (made, found) in tally.items()},
              f"mutants-{given.part}.json")  # fmt: skip


if __name__ == "__main__":
    main()
