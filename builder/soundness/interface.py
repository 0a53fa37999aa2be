"""What a Python module has and what it imports, read from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

ANY_ERROR = frozenset({"Exception", "BaseException"})
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", *ANY_ERROR})
_WRITERS = frozenset({"update", "setdefault", "__setitem__", "pop", "clear"})
# What every module has.
_ALWAYS = frozenset({
    "__name__", "__file__", "__doc__", "__dict__", "__spec__", "__loader__", "__package__", "__builtins__",
    "__annotations__", "__cached__", "__all__", "__class__",
})  # fmt: skip
# Without one of these words, no function of a module gives it a name.
_TELLING = (b"global ", b"globals(", b"vars(", b"exec(", b"modules[", b"__dict__")


@dataclass(frozen=True)
class Import:
    """One name of an import statement.

    Args:
        level: leading dots.
        module: what stands after them; may be empty where there are any.
        name: what is taken from it; None for ``import module``, ``*`` for all.
        line: from 1.
        is_guarded: it may fail: a handler of ImportError is around it, or only a type checker sees it.
    """

    level: int
    module: str
    name: str | None
    line: int = field(compare=False)
    is_guarded: bool = False


@dataclass(frozen=True)
class Interface:
    """A module as others see it.

    Args:
        names: what is defined at its top level, on any path through it.
        imports: every import in it, also inside of functions.
        exports: what ``__all__`` names; None where there is none, or it is put together when the module runs.
        hides_private: ``from module import *`` leaves out what begins with ``_``: it has no ``__all__``.
        is_open: it may have other names: it makes some when it runs.
        writes_globals: its own functions may find other names, for the same reason.
    """

    names: frozenset[str]
    imports: tuple[Import, ...]
    exports: frozenset[str] | None
    hides_private: bool
    is_open: bool
    writes_globals: bool

    @property
    def stars(self) -> tuple[Import, ...]:
        """The modules all of whose names it takes."""
        return tuple(taken for taken in self.imports if taken.name == "*")

    def withholds(self, name: str) -> bool:
        """Whether ``from module import *`` certainly does not take a name, though the module may have it."""
        if self.exports is not None:
            return name not in self.exports
        return self.hides_private and name.startswith("_")


def read_interface(tree: ast.Module, data: bytes) -> Interface:
    """The interface of a module.

    Args:
        tree: its syntax tree.
        data: its bytes, which tell in most cases that the whole tree need not be walked.

    Raises:
        RecursionError: it is nested too deeply to be looked at.
    """
    names = {*_ALWAYS, *_left_defined(tree.body)}
    writes_globals = replaces_module = False
    for node in ast.walk(tree) if any(word in data for word in _TELLING) else ():
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, (ast.Subscript, ast.Call)):
            writes_globals = writes_globals or _writes_globals(node)
            replaces_module = replaces_module or _replaces_module(node)
    is_open = writes_globals or replaces_module or not names.isdisjoint(("__getattr__", "__path__"))
    imports = tuple(_imports(tree.body, is_guarded=False))
    exports, hides_private = _exports(tree) if b"__all__" in data else (None, True)
    return Interface(frozenset(names), imports, exports, hides_private, is_open, writes_globals)


def only_checked(node: ast.If) -> tuple[list[ast.stmt] | None, list[ast.stmt]]:
    """The statements of an ``if`` that only a type checker sees, and those that may run.

    None for the former where that is not what is asked, or not alone.
    """
    test = node.test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_type_checking(test.operand):
        return node.orelse, node.body
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    if any(map(_is_type_checking, parts)):
        return node.body, node.orelse
    return None, [*node.body, *node.orelse]


def _is_type_checking(test: ast.expr) -> bool:
    return last_name(test) == "TYPE_CHECKING"


# --- names --------------------------------------------------------------------------------------------------


def _left_defined(body: Iterable[ast.stmt]) -> set[str]:
    """The names that a module has when it has run, whichever way it went."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Delete):
            names -= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        else:
            names |= set(_defined([statement]))
    return names


def _exports(tree: ast.Module) -> tuple[frozenset[str] | None, bool]:
    """What ``__all__`` names, as far as it is written out; and whether there is none."""
    mentions = sum(isinstance(node, ast.Name) and node.id == "__all__" for node in ast.walk(tree))
    named: set[str] = set()
    known = False
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List() | ast.Tuple() as said)
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List() | ast.Tuple() as said)
                | ast.AugAssign(
                    target=ast.Name(id="__all__"), op=ast.Add(), value=ast.List() | ast.Tuple() as said
                )
            ) if all(isinstance(one, ast.Constant) for one in said.elts):
                named |= {str(one.value) for one in said.elts if isinstance(one, ast.Constant)}
                mentions -= 1
                known = True
            case _:
                continue
    return (frozenset(named) if known and not mentions else None), not known and not mentions


def _defined(body: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements define in their own scope, whichever way the program goes.

    What only a type checker sees is not there when the program runs, nor is a comprehension's own variable.
    """
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, ast.If):
            waiting += [node.test, *only_checked(node)[1]]
        elif isinstance(node, ast.comprehension):
            waiting += [node.iter, *node.ifs]
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _writes_globals(node: ast.AST) -> bool:
    """Whether names may come into being that no statement shows: ``globals()[…] = …``, ``exec``."""
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_namespace(node.value)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and _is_namespace(node.func.value):
        return node.func.attr in _WRITERS
    called = last_name(node.func)
    sets_name = called == "setattr" and bool(node.args) and _is_module(node.args[0])
    return called == "exec" or sets_name or any(map(_is_namespace, node.args))


def _is_namespace(node: ast.AST) -> bool:
    """Whether an expression is the names of a module: ``globals()``, ``sys.modules[…].__dict__``."""
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return _is_module(node.value)
    return isinstance(node, ast.Call) and last_name(node.func) in ("globals", "vars") and not node.args


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.Subscript) and last_name(node.value) == "modules"


def _replaces_module(node: ast.AST) -> bool:
    """``sys.modules[__name__] = …``: another one stands in for the module."""
    return isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is_module(node)


# --- imports ------------------------------------------------------------------------------------------------


def _imports(body: Iterable[ast.AST], *, is_guarded: bool) -> Iterator[Import]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(0, alias.name, None, node.lineno, is_guarded)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield Import(node.level, node.module or "", alias.name, node.lineno, is_guarded)
        elif isinstance(node, (ast.Try, ast.TryStar)):
            may_fail = is_guarded or catches(node, _IMPORT_ERRORS)
            yield from _imports([*node.body, *node.handlers], is_guarded=may_fail)
            yield from _imports([*node.orelse, *node.finalbody], is_guarded=is_guarded)
        elif isinstance(node, ast.With) and suppresses(node, _IMPORT_ERRORS):
            yield from _imports(node.body, is_guarded=True)
        elif isinstance(node, ast.If) and asks_for_type_checking(node.test):
            unseen, runs = only_checked(node)
            yield from _imports(unseen or (), is_guarded=True)
            # Where more is asked, nobody knows what runs.
            yield from _imports(runs, is_guarded=is_guarded or unseen is None)
        elif not isinstance(node, ast.expr):
            yield from _imports(ast.iter_child_nodes(node), is_guarded=is_guarded)


def catches(node: ast.Try | ast.TryStar, errors: Collection[str]) -> bool:
    """Whether a ``try`` has a handler for one of some errors."""
    return any(_is_one_of(handler.type, errors) for handler in node.handlers)


def suppresses(node: ast.With | ast.AsyncWith, errors: Collection[str]) -> bool:
    """Whether a ``with`` passes over one of some errors: ``contextlib.suppress``."""
    return any(
        isinstance(call := item.context_expr, ast.Call)
        and last_name(call.func) == "suppress"
        and any(_is_one_of(error, errors) for error in call.args)
        for item in node.items
    )


def _is_one_of(caught: ast.expr | None, errors: Collection[str]) -> bool:
    if caught is None:
        return True
    each = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(last_name(error) in errors for error in each)


def asks_for_type_checking(test: ast.expr) -> bool:
    """Whether ``TYPE_CHECKING`` is a part of what is asked."""
    return any(last_name(node) == "TYPE_CHECKING" for node in ast.walk(test))


def last_name(node: ast.AST) -> str:
    """The last component of a dotted name; empty for what is none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
