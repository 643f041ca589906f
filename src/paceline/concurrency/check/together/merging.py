"""Makes one syntax tree of several files: imports become the names of what they import.

A name of a module that two files bind is renamed in the later one, and the lines of file n begin at n * STRIDE, so that
every place of the tree tells its file. `places` turns both back.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.concurrency.check.syntax.tree import dotted, imported
from paceline.concurrency.check.together import STRIDE, ProjectModules, marked


@dataclass
class _File:
    """One file while it is merged."""

    number: int
    path: str
    tree: ast.Module
    #: Every import of the file, those within functions too.
    imports: list[ast.Import | ast.ImportFrom]
    #: Top-level name -> the name in the merged tree.
    names: dict[str, str] = field(default_factory=dict)
    #: Local name of an import -> the name that it means in the merged tree.
    meant: dict[str, str] = field(default_factory=dict)
    #: Local name of an import, or the dotted name of an imported module -> its file.
    modules: dict[str, _File] = field(default_factory=dict)


def merge(trees: Mapping[str, ast.Module]) -> ast.Module:
    """The files as one tree, in the order in which they are given."""
    files = {path: _File(n, path, tree, _shifted(tree, n)) for n, (path, tree) in enumerate(trees.items(), start=1)}
    modules = ProjectModules(files)
    origins: dict[str, str] = {}
    for file in files.values():
        _name(file, modules, origins)
    for file in files.values():
        for statement in file.imports:
            _resolve(statement, file, files, modules)
    body: list[ast.stmt] = []
    for file in files.values():
        _Renaming(file).run()
        body += file.tree.body
    return ast.Module(body, [])


def _name(file: _File, modules: ProjectModules, origins: dict[str, str]) -> None:
    """Give every top-level name of a file one that no other file has for something else."""
    outside = {}
    for statement in file.imports:
        for name, origin in imported(statement).items():
            inside = isinstance(statement, ast.ImportFrom) and _origin(statement, modules, file.path) is not None
            outside[name] = "" if inside else origin
    bound = _bound(file.tree.body)
    for name in sorted(bound.names | bound.imports):
        if outside.get(name) == "":
            continue  # it means a name of another file
        origin = outside.get(name, f"{file.path}:{name}")
        clash = hasattr(builtins, name) if name not in origins else origins[name] != origin
        file.names[name] = marked(name, file.number) if clash else name
        origins.setdefault(name, origin)


def _shifted(tree: ast.Module, number: int) -> list[ast.Import | ast.ImportFrom]:
    """Move the lines of a file to its place in the merged tree; returns its imports."""
    imports, shift = [], number * STRIDE
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind is ast.Import or kind is ast.ImportFrom:
            imports.append(node)
        if hasattr(node, "lineno"):
            node.lineno += shift
            if node.end_lineno is not None:  # type: ignore[attr-defined]
                node.end_lineno += shift  # type: ignore[attr-defined]
        for name in node._fields:
            value = getattr(node, name, None)
            if type(value) is list:
                todo += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields != ():
                todo.append(value)
    return imports[::-1]  # type: ignore[return-value]


class _Bound(NamedTuple):
    """The names that statements bind: by assignments and definitions, by imports; and those that they share."""

    names: set[str]
    imports: set[str]
    shared: set[str]


def _bound(body: list[ast.stmt]) -> _Bound:
    """The names that the statements of a scope bind in it."""
    bindings = _Bound(set(), set(), set())
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind is ast.Name:
            if type(node.ctx) is ast.Store:  # type: ignore[attr-defined]
                bindings.names.add(node.id)  # type: ignore[attr-defined]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bindings.names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bindings.imports.update(imported(node))
        elif isinstance(node, ast.Global):
            bindings.shared.update(node.names)
        elif not isinstance(node, _SCOPES):
            for name in node._fields:
                value = getattr(node, name, None)
                if type(value) is list:
                    todo += [each for each in value if isinstance(each, ast.AST)]
                elif isinstance(value, ast.AST):
                    todo.append(value)
    return bindings


_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Constant)


def _origin(statement: ast.ImportFrom, modules: ProjectModules, importer: str) -> str | None:
    """The file from which a statement imports; None where it is none of the program."""
    return modules.named("." * statement.level + (statement.module or ""), importer)


def _resolve(
    statement: ast.Import | ast.ImportFrom, file: _File, files: Mapping[str, _File], modules: ProjectModules
) -> None:
    """Record what the names of an import mean, where that is in the program."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            path = modules.named(alias.name, file.path)
            if path is not None:
                file.modules[alias.asname or alias.name] = files[path]
        return
    base = "." * statement.level + (statement.module or "")
    path = modules.named(base, file.path)
    source = None if path is None else files[path]
    for alias in statement.names:
        local = alias.asname or alias.name
        if alias.name == "*" and source is not None:
            file.meant.update({name: final for name, final in source.names.items() if not name.startswith("_")})
            continue
        final = _final(alias.name, source, files, modules, set()) if source is not None else None
        below = modules.named(f"{base}{'' if base.endswith('.') else '.'}{alias.name}", file.path)
        if final is not None:
            file.meant[local] = final
        elif below is not None:
            file.modules[local] = files[below]


def _final(
    name: str, file: _File, files: Mapping[str, _File], modules: ProjectModules, visited: set[str]
) -> str | None:
    """The merged name of a top-level name of a file, through re-exports."""
    if name in file.names:
        return file.names[name]
    for statement in file.imports if file.path not in visited else ():
        if isinstance(statement, ast.ImportFrom):
            path = _origin(statement, modules, file.path)
            for alias in statement.names if path is not None else ():
                if name in (alias.asname or alias.name,) or alias.name == "*":
                    source_name = name if alias.name == "*" else alias.name
                    merged_name = _final(source_name, files[path], files, modules, visited | {file.path})  # type: ignore[index]
                    if merged_name is not None:
                        return merged_name
    return None


class _Renaming:
    """Replaces the names of one file by those of the merged tree; local names hide both."""

    def __init__(self, file: _File) -> None:
        self.file = file
        renames = {name: final for name, final in file.names.items() if name != final}
        self.map = renames | {name: final for name, final in file.meant.items() if name != final}
        self.heads = {name.partition(".")[0] for name in file.modules}
        #: The names of other modules that the function at hand assigns.
        self.assigned: set[str] = set()

    def run(self) -> None:
        """Rewrite the tree of the file in place."""
        if self.map or self.heads:
            tree = self.file.tree
            tree.body = [self.visit(node, frozenset()) for node in tree.body]  # type: ignore[misc]

    def visit(self, node: ast.AST, hidden: frozenset[str], top: bool = True) -> ast.AST:
        """The node with the names of the merged tree; `hidden` are names that a scope around it binds."""
        if isinstance(node, ast.Name):
            if node.id not in hidden:
                node.id = self.map.get(node.id, node.id)
            return node
        if isinstance(node, ast.Attribute) and (replacement := self._of_module(node, hidden)) is not None:
            return replacement
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._import(node)
        if isinstance(node, ast.Global):
            node.names = [self.map.get(name, name) for name in node.names]
            return node
        inside = hidden
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = hidden | _locals(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and top:
            node.name = self.map.get(node.name, node.name)
        if isinstance(node, ast.ClassDef):
            self._class(node, hidden)
            return node
        below = top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        before, self.assigned = self.assigned, set()
        self._children(node, inside, below)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._share(node)
            self.assigned = set()
        self.assigned |= before
        return node

    def _share(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Declare what a function assigns to other modules as global: `settings.pool = Pool()` is `pool = Pool()`."""
        if self.assigned:
            shared = ast.copy_location(ast.Global(sorted(self.assigned)), node.body[0])
            node.body.insert(int(ast.get_docstring(node, clean=False) is not None), shared)

    def _children(self, node: ast.AST, hidden: frozenset[str], top: bool) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if type(value) is list:
                value[:] = [self.visit(v, hidden, top) if isinstance(v, ast.AST) else v for v in value]
            elif isinstance(value, ast.AST) and value._fields != ():
                setattr(node, name, self.visit(value, hidden, top))

    def _class(self, node: ast.ClassDef, hidden: frozenset[str]) -> None:
        """Rewrite a class, whose own names hide others in its statements but not in its methods."""
        bound = _bound(node.body)
        hidden_inside = hidden | bound.names | bound.imports
        for part in ("bases", "keywords", "decorator_list"):
            setattr(node, part, [self.visit(each, hidden, False) for each in getattr(node, part)])
        methods = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node.body = [self.visit(s, hidden if isinstance(s, methods) else hidden_inside, False) for s in node.body]  # type: ignore[misc]

    def _of_module(self, node: ast.Attribute, hidden: frozenset[str]) -> ast.AST | None:
        """`store.Store` of an imported module as the name of what it means."""
        if not isinstance(node.value, ast.Name | ast.Attribute):
            return None
        text = dotted(node.value)
        file = self.file.modules.get(text)
        if file is None or text.partition(".")[0] in hidden:
            return None
        final = file.names.get(node.attr) or file.meant.get(node.attr)
        if final is not None and not isinstance(node.ctx, ast.Load):
            self.assigned.add(final)
        return None if final is None else ast.copy_location(ast.Name(final, node.ctx), node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> ast.stmt:
        """An import without what the merged tree has itself."""
        aliases = []
        for alias in node.names:
            local = alias.asname or alias.name
            if local in self.file.meant or local in self.file.modules:
                continue
            final = self.map.get(local)
            aliases.append(alias if final is None else ast.alias(alias.name, final))
        if not aliases:
            return ast.copy_location(ast.Pass(), node)
        node.names = aliases
        return node


def _locals(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> frozenset[str]:
    """The names that a function binds."""
    arguments = node.args
    names = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
    if isinstance(node, ast.Lambda):
        return frozenset(names)
    bound = _bound(node.body)
    return frozenset((names | bound.names) - bound.shared - bound.imports)
