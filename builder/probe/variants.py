"""The same source in other words: variants of a patched file that every probe must still call ``fixed``.

Only the definitions that the patch touches are rewritten, each in place: :data:`REWRITINGS` says how.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from builder.probe.harness import Definition, definitions, module_name

Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_MIRRORED = {
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}
_SEE_LOCALS = frozenset({"locals", "vars", "eval", "exec", "dir"})
SPARE = "spare_option"
"""The parameter that nobody asks for."""


@dataclass(frozen=True)
class Touched:
    """A Python file of the patched tree and the definitions in it that a patch changed or added.

    Args:
        path: from the repository's root.
        text: the file, after the whole series.
        names: dotted names, such as ``MessageQueue.__init__``; the innermost ones.
    """

    path: str
    text: str
    names: tuple[str, ...]


def touched_names(before: bytes | None, after: bytes) -> tuple[str, ...]:
    """The innermost definitions of ``after`` that are not in ``before`` as they are."""
    old = {name: ast.dump(node) for name, node in definitions(_parsed(before))} if before else {}
    changed = {name for name, node in definitions(_parsed(after)) if old.get(name) != ast.dump(node)}
    return tuple(sorted(n for n in changed if not any(other.startswith(f"{n}.") for other in changed)))


def rewritten(kind: str, files: Sequence[Touched]) -> dict[str, bytes]:
    """The files of a variant by path; empty where this kind changes nothing.

    Args:
        kind: a key of :data:`REWRITINGS`.
        files: what the patch touches.
    """
    made: dict[str, bytes] = {}
    for file in files:
        made |= {path: text.encode() for path, text in REWRITINGS[kind](file).items()}
    return made


@functools.lru_cache(maxsize=32)
def _parsed(data: bytes) -> ast.Module:
    return ast.parse(data)


def _in_place(file: Touched, change: Callable[[Definition], bool]) -> dict[str, str]:
    """The file with each touched definition changed, and each statement that holds one written anew.

    Args:
        file: the file.
        change: changes one definition; says whether it did.
    """
    lines = file.text.splitlines(keepends=True)
    module = ast.parse(file.text)
    changed = False
    for statement in reversed(module.body):
        if not isinstance(statement, Definition):
            continue
        within = dict(definitions(ast.Module([statement], [])))
        wanted = [node for name, node in within.items() if name in file.names]
        if sum(change(node) for node in wanted):  # every one of them
            text = ast.unparse(ast.fix_missing_locations(statement))
            lines[_first_line(statement) - 1 : statement.end_lineno] = [text, "\n"]
            changed = True
    return {file.path: "".join(lines)} if changed else {}


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _functions(node: ast.AST) -> Iterator[Function]:
    return (child for child in ast.walk(node) if isinstance(child, Function))


# --- renamed locals ---------------------------------------------------------------------------------


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below ``node`` that is in its own scope; of scopes within, the nodes themselves."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*_SCOPES, ast.ClassDef)):
            yield from _own(child)
        elif isinstance(child, _COMPREHENSIONS):
            yield from (n for n in ast.walk(child) if isinstance(n, ast.NamedExpr))


def _parameters(node: ast.AST) -> set[str]:
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments):
        return set()
    every = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    return {argument.arg for argument in every if argument is not None}


def _stored(node: ast.AST) -> set[str]:
    """Names that are plainly assigned in the scope of ``node``."""
    names = {n.id for n in _own(node) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    names |= {n.target.id for n in _own(node) if isinstance(n, ast.NamedExpr)}
    return names


def _bound_otherwise(node: ast.AST) -> set[str]:
    """Names that an import, a definition, an ``except`` or a pattern binds, or that are another scope's."""
    names: set[str] = set()
    for child in _own(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in child.names}
        elif isinstance(child, ast.Global | ast.Nonlocal):
            names |= set(child.names)
        elif isinstance(child, Definition | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            names |= {child.name} if child.name else set()
        elif isinstance(child, ast.MatchMapping) and child.rest:
            names.add(child.rest)
    return names


class _Renamer(ast.NodeTransformer):
    """Give a function's locals other names, in it and where functions within read them."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = dict(names)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.Nonlocal:
        node.names = [self._names.get(name, name) for name in node.names]
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _SCOPES):
            return super().generic_visit(node)
        outer = self._names
        local = _parameters(node) | (_stored(node) - {n for c in _nonlocals(node) for n in c.names})
        if isinstance(node, _COMPREHENSIONS):
            local -= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        self._names = {name: new for name, new in outer.items() if name not in local}
        try:
            return super().generic_visit(node)
        finally:
            self._names = outer


def _nonlocals(node: ast.AST) -> list[ast.Nonlocal]:
    return [child for child in _own(node) if isinstance(child, ast.Nonlocal)]


def _rename_locals(definition: Definition) -> bool:
    changed = False
    for function in _functions(definition):
        used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
        if used & _SEE_LOCALS or any(isinstance(n, ast.ClassDef) for n in ast.walk(function)):
            continue
        local = _stored(function) - _parameters(function) - _bound_otherwise(function)
        names = {name: f"{name}_1" for name in local if f"{name}_1" not in used and name != "_"}
        renamer = _Renamer(names)
        function.body = [renamer.visit(statement) for statement in function.body]
        changed = changed or bool(names)
    return changed


# --- the other ways ---------------------------------------------------------------------------------


def _as_it_is(definition: Definition) -> bool:
    return True


def _add_parameter(definition: Definition) -> bool:
    """A last parameter with a default; not where a decorator may look at the parameters."""
    if isinstance(definition, ast.ClassDef) or definition.decorator_list:
        return False
    arguments = definition.args
    if arguments.vararg is None and not arguments.kwonlyargs:
        arguments.args.append(ast.arg(SPARE))
        arguments.defaults.append(ast.Constant(None))
    else:
        arguments.kwonlyargs.append(ast.arg(SPARE))
        arguments.kw_defaults.append(ast.Constant(None))
    return True


class _Turner(ast.NodeTransformer):
    def __init__(self) -> None:
        self.changed = False

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if node.orelse:
            node.test, node.body, node.orelse = _negated(node.test), node.orelse, node.body
            self.changed = True
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test, node.body, node.orelse = _negated(node.test), node.orelse, node.body
        self.changed = True
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and type(node.ops[0]) in _MIRRORED:
            left, right = node.left, node.comparators[0]
            if not any(isinstance(n, ast.Call | ast.Await | ast.NamedExpr) for n in ast.walk(node)):
                mirrored = ast.Compare(right, [_MIRRORED[type(node.ops[0])]()], [left])
                self.changed = True
                return ast.copy_location(mirrored, node)
        return node


def _negated(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.UnaryOp(ast.Not(), test)


def _turn_round(definition: Definition) -> bool:
    turner = _Turner()
    turner.visit(definition)
    return turner.changed


# --- moved ------------------------------------------------------------------------------------------


def _move(file: Touched) -> dict[str, str]:
    """The touched top-level definitions in a module of their own, from which the old one has them."""
    module = ast.parse(file.text)
    bound = {name for statement in module.body for name in _names_bound(statement)}
    shared = {n for node in ast.walk(module) if isinstance(node, ast.Global) for n in node.names}
    lazy = _has_future_annotations(module)
    at_import = {n for statement in module.body for n in _read_at_import(statement, lazy)}
    roots = {name.partition(".")[0] for name in file.names}
    moved = [
        node
        for node in module.body
        if isinstance(node, Definition)
        and node.name in roots
        and node.name not in at_import | shared
        and not _mentioned(node) & shared
        and not any(isinstance(n, ast.Global) for n in ast.walk(node))
    ]
    if not moved or file.path.endswith("/__init__.py"):
        return {}
    names = [node.name for node in moved]
    needed = sorted({n for node in moved for n in _mentioned(node)} & bound - set(names))
    lines = file.text.splitlines(keepends=True)
    parts: list[str] = ["from __future__ import annotations\n"] if lazy else []
    here, there = module_name(file.path), f"{module_name(file.path)}_moved"
    if needed:
        parts.append(f"from {here} import ({', '.join(needed)})\n")
    for node in moved:
        parts += ["\n\n", *lines[_first_line(node) - 1 : node.end_lineno]]
    for node in reversed(moved):
        del lines[_first_line(node) - 1 : node.end_lineno]
    lines.append(f"\n\nfrom {there} import {', '.join(names)}\n")
    new_path = f"{file.path.removesuffix('.py')}_moved.py"
    return {file.path: "".join(lines), new_path: "".join(parts)}


def _mentioned(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _names_bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, Definition):
        return {statement.name}
    holder = ast.Module([statement], [])
    return (_stored(holder) | _bound_otherwise(holder)) - {"*"}


def _has_future_annotations(module: ast.Module) -> bool:
    return any(
        isinstance(s, ast.ImportFrom) and s.module == "__future__" and s.names[0].name == "annotations"
        for s in module.body
    )


def _read_at_import(node: ast.AST, lazy: bool) -> Iterator[str]:
    """The names that are read while the module is imported: not those in bodies of functions."""
    if isinstance(node, ast.Name):
        yield node.id
    parts: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Lambda):
        parts = [node.args]
    elif isinstance(node, Function):
        parts = [node.args, *node.decorator_list, *([node.returns] if node.returns and not lazy else [])]
    elif isinstance(node, ast.arg) and lazy:
        parts = []
    for part in parts:
        yield from _read_at_import(part, lazy)


REWRITINGS: Mapping[str, Callable[[Touched], dict[str, str]]] = {
    "formatted anew, without comments": lambda file: _in_place(file, _as_it_is),
    "local variables renamed": lambda file: _in_place(file, _rename_locals),
    "branches and comparisons turned round": lambda file: _in_place(file, _turn_round),
    "a parameter more, with a default": lambda file: _in_place(file, _add_parameter),
    "moved to another module, re-exported": _move,
}
"""By what is said of it: a file and what becomes of it, by path; empty where there is nothing to rewrite."""
