"""What a Python file takes from modules by a dot: ``m.name`` where an import alone makes ``m``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from builder.soundness.interface import (
    ANY_ERROR,
    Import,
    asks_for_type_checking,
    catches,
    last_name,
    only_checked,
    suppresses,
)

_ERRORS = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError", "NameError", *ANY_ERROR})
# Who calls one of these knows that the attribute may not be there, or makes it.
_ASKERS = frozenset({"hasattr", "getattr", "setattr", "delattr", "object"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Use:
    """Attributes that are looked up one after the other, from what an import binds.

    Args:
        bound: the imports that may have made the first name; it is what each of them takes.
        names: the attributes, outermost last; ``a.b.c`` after ``import a.b`` has ``b`` and ``c``.
        line: from 1.
    """

    bound: tuple[Import, ...]
    names: tuple[str, ...]
    line: int = field(compare=False)


def read_uses(tree: ast.Module) -> tuple[Use, ...]:
    """The attributes of what imports bind, as far as nothing else in the file binds the same name.

    Left out is what may fail (a handler of AttributeError or ImportError around it or around its import, only
    a type checker sees it), what the file asks for (``hasattr``) or sets, and annotations that are not
    evaluated.
    """
    reader = _Reader(tree)
    reader.read()
    return tuple(reader.uses())


class _Reader:
    """One walk through a file, without recursion."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._imports: dict[str, list[Import]] = {}
        self._others: set[str] = set()
        self._asked: set[str] = set()
        self._found: list[tuple[str, tuple[str, ...], int]] = []
        self._set: set[tuple[str, str]] = set()
        self._is_lazy = any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" and _imports_annotations(node)
            for node in tree.body
        )

    def uses(self) -> Iterator[Use]:
        if "*" in self._imports:
            return  # it may bind any name anew
        for root, names, line in self._found:
            bound = self._imports.get(root)
            if not bound or root in self._others or any(taken.is_guarded for taken in bound):
                continue
            if not self._asked.intersection(names) and not any((root, name) in self._set for name in names):
                ordered = sorted(bound, key=lambda taken: taken.line)
                yield Use(tuple(dict.fromkeys(ordered)), names, line)

    def read(self) -> None:
        waiting: list[tuple[ast.AST, bool]] = [(node, False) for node in self._tree.body]
        while waiting:
            node, is_guarded = waiting.pop()
            self._binds(node, is_guarded=is_guarded)
            waiting += self._below(node, is_guarded=is_guarded)

    def _below(self, node: ast.AST, *, is_guarded: bool) -> Iterator[tuple[ast.AST, bool]]:
        """The nodes below one, each with whether it may fail."""
        if isinstance(node, (ast.Try, ast.TryStar)):
            may_fail = is_guarded or catches(node, _ERRORS)
            yield from ((child, may_fail) for child in (*node.body, *node.handlers))
            yield from ((child, is_guarded) for child in (*node.orelse, *node.finalbody))
        elif isinstance(node, (ast.With, ast.AsyncWith)) and suppresses(node, _ERRORS):
            yield from ((child, True) for child in node.body)
            yield from ((item, is_guarded) for item in node.items)
        elif isinstance(node, ast.If) and asks_for_type_checking(node.test):
            unseen, runs = only_checked(node)
            yield from ((child, True) for child in unseen or ())
            yield from ((child, is_guarded or unseen is None) for child in runs)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node, is_guarded=is_guarded)
        else:
            skipped = list(self._unevaluated(node))
            children = ast.iter_child_nodes(node)
            yield from ((child, is_guarded) for child in children if not any(child is s for s in skipped))

    def _attribute(self, node: ast.Attribute, *, is_guarded: bool) -> Iterator[tuple[ast.AST, bool]]:
        names = [node.attr]
        value = node.value
        while isinstance(value, ast.Attribute):
            names.append(value.attr)
            value = value.value
        if not isinstance(value, ast.Name):
            yield value, is_guarded
        elif not isinstance(node.ctx, ast.Load):
            self._set.add((value.id, node.attr))
        elif not is_guarded:
            self._found.append((value.id, tuple(reversed(names)), node.lineno))

    def _unevaluated(self, node: ast.AST) -> Iterator[ast.AST | None]:
        """The annotations that Python passes over: a variable's, and all where the file postpones them."""
        if isinstance(node, ast.AnnAssign) or (self._is_lazy and isinstance(node, ast.arg)):
            yield node.annotation
        elif self._is_lazy and isinstance(node, _Function):
            yield node.returns

    def _binds(self, node: ast.AST, *, is_guarded: bool) -> None:
        """Note the names that a node itself binds, and those of attributes that it asks for."""
        match node:
            case ast.Import():
                for alias in node.names:
                    name = alias.name if alias.asname else alias.name.partition(".")[0]
                    taken = Import(0, name, None, node.lineno, is_guarded)
                    self._imports.setdefault(alias.asname or name, []).append(taken)
            case ast.ImportFrom():
                for alias in node.names:
                    taken = Import(node.level, node.module or "", alias.name, node.lineno, is_guarded)
                    self._imports.setdefault(alias.asname or alias.name, []).append(taken)
            case ast.Name(id=name) if not isinstance(node.ctx, ast.Load):
                self._others.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._others.add(node.name)
            case ast.arg(arg=name) | ast.MatchMapping(rest=str(name)):
                self._others.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                self._others.add(name)
            case ast.Call() if last_name(node.func) in _ASKERS:
                self._asked |= set(_texts(node.args))
            case ast.Compare(ops=[ast.In() | ast.NotIn(), *_]):
                self._asked |= set(_texts([node.left]))


def _texts(nodes: list[ast.expr]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def _imports_annotations(node: ast.ImportFrom) -> bool:
    return any(alias.name == "annotations" for alias in node.names)
