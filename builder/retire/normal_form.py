"""A definition's normal form: its syntax without what does not change what it does.

Two definitions with the same normal form do the same. Each step (see :class:`Steps`) can be left out: a patch
that itself changes an annotation is not in a target for want of looking at annotations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from builder.patch.definitions import parse_source

_FORMS_KEPT = 1024
_LOOKS_AT_LOCALS = frozenset({"locals", "vars", "eval", "exec", "dir"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Steps:
    """What is taken out of the syntax beside comments and formatting, which it never has.

    Args:
        annotations: of parameters, results and local variables (those of a class's fields stay).
        docstrings: of the definition and of those in it.
        imports: those in functions.
        kept: names of parameters that stay; those of all others and of local variables do not count.
    """

    annotations: bool = True
    docstrings: bool = True
    imports: bool = True
    kept: frozenset[str] = frozenset()

    def __str__(self) -> str:
        taken = ["comments", "formatting"]
        taken += [name for name in ("annotations", "docstrings") if getattr(self, name)]
        taken += ["imports in functions"] if self.imports else []
        return f"{', '.join(taken)} and names of locals apart"


def steps_between(before: bytes | None, after: bytes) -> Steps:
    """The steps that may be taken to look for a change: what the change itself is about is left in.

    Args:
        before, after: a definition without and with the change; None where it is new.
    """
    if before is None:
        return Steps()
    old, new = _facts(before), _facts(after)
    annotations, docstrings, imports = (was == now for was, now in zip(old[:3], new[:3], strict=True))
    return Steps(annotations, docstrings, imports, frozenset(set(old[3]) ^ set(new[3])))


@lru_cache(maxsize=_FORMS_KEPT)
def normal_form(text: bytes, steps: Steps, *, alone: bool = False, named: bool = True) -> str | None:
    """The normal form of a definition; None where it does not parse.

    Args:
        text: its source, whole lines.
        steps: what is taken out.
        alone: without the functions and classes in it (for what stands right in a class).
        named: with its own name.
    """
    tree = parse_source(text)
    node = _statement(tree)
    if node is None:
        return None
    if alone and isinstance(node, ast.ClassDef):
        node.body = [n for n in node.body if not isinstance(n, (*_FUNCTIONS[:2], ast.ClassDef))]
    if not named and isinstance(node, (*_FUNCTIONS[:2], ast.ClassDef)):
        node.name = ""
    try:
        _strip(node, steps)
        _Renamer(steps.kept).visit_scope(node)
        return ast.dump(node, annotate_fields=False)
    except RecursionError:
        return None


def _statement(tree: ast.Module | None) -> ast.stmt | None:
    """The one statement of a text, below the ``if 1:`` that an indented one was put under."""
    if tree is None or len(tree.body) != 1:
        return None
    node = tree.body[0]
    if isinstance(node, ast.If) and isinstance(node.test, ast.Constant) and node.lineno == 1 and node.body:
        return node.body[0] if len(node.body) == 1 and not node.orelse else None
    return node


# --- what a patch may be about ------------------------------------------------------------------------------


@lru_cache(maxsize=_FORMS_KEPT)
def _facts(text: bytes) -> tuple[tuple[str, ...], ...]:
    """Annotations, docstrings, imports in functions and parameters: each in order."""
    tree = parse_source(text)
    if tree is None:
        return (("?",),) * 4
    found: tuple[list[str], ...] = ([], [], [], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            found[0].append(_dumped(node.annotation))
            found[3].append(node.arg)
        elif isinstance(node, ast.AnnAssign):
            found[0].append(_dumped(node.annotation))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[0].append(_dumped(getattr(node, "returns", None)))
            found[1].append(ast.get_docstring(node, clean=False) or "")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found[2].append(ast.dump(node))
    return tuple(map(tuple, found))


def _dumped(node: ast.expr | None) -> str:
    return "" if node is None else ast.dump(node)


# --- what is taken out --------------------------------------------------------------------------------------


def _strip(node: ast.AST, steps: Steps, *, in_class: bool = False) -> None:
    """Take out of a statement, in place, what the steps say."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and steps.annotations:
        node.returns = None
    if isinstance(node, ast.arg) and steps.annotations:
        node.annotation = None
    inside_class = isinstance(node, ast.ClassDef)
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if isinstance(body, list):
            kept = list(_kept(node, body, steps, in_class=inside_class or (in_class and _is_branch(node))))
            setattr(node, field, kept or ([ast.Pass()] if body else []))
    for child in ast.iter_child_nodes(node):
        _strip(child, steps, in_class=inside_class or (in_class and _is_branch(node)))


def _is_branch(node: ast.AST) -> bool:
    return isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While)


def _kept(parent: ast.AST, body: Sequence[ast.AST], steps: Steps, *, in_class: bool) -> Iterator[ast.AST]:
    has_doc = isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    for number, node in enumerate(body):
        if number == 0 and has_doc and steps.docstrings and _is_text(node):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom) and steps.imports and not in_class:
            continue
        if isinstance(node, ast.AnnAssign) and steps.annotations and not in_class:
            if node.value is not None:
                yield ast.Assign([node.target], node.value)
            continue
        yield node


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


# --- names of locals ----------------------------------------------------------------------------------------


class _Renamer:
    """Gives every local variable a name by the order in which locals are met; other names stay.

    A name is looked up as Python does it: in the function that binds it, from the inside out; names of a
    class's own body and global ones are left.
    """

    def __init__(self, kept: frozenset[str]) -> None:
        self._kept = kept
        self._scopes: list[dict[str, str]] = []
        self._classes: list[int] = []
        self._met = 0

    def visit_scope(self, node: ast.AST) -> None:
        """Rename in a statement, in place."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._function(node, own_name=False)
        else:
            self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, _FUNCTIONS):
            self._function(node)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node)
        elif isinstance(node, ast.ClassDef):
            node.name = self._name(node.name)
            for child in (*node.decorator_list, *node.bases, *node.keywords):
                self._visit(child)
            # what a class binds is an attribute of it, and its functions do not see it by name
            self._scopes.append({name: name for name in _bound(node.body)})
            self._classes.append(len(self._scopes))
            self._visit_all(node.body)
            self._scopes.pop()
            self._classes.pop()
        else:
            self._names_of(node)
            for child in ast.iter_child_nodes(node):
                self._visit(child)

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self._visit(node)

    def _names_of(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            node.id = self._name(node.id)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name is not None:
            node.name = self._name(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            node.rest = self._name(node.rest)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            node.names = [self._name(name) for name in node.names]

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, *, own_name: bool = True
    ) -> None:
        outside: list[ast.AST] = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        if not isinstance(node, ast.Lambda):
            outside += node.decorator_list
            if own_name:
                node.name = self._name(node.name)
        self._visit_all(outside)
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments += [found for found in (node.args.vararg, node.args.kwarg) if found is not None]
        names = {argument.arg for argument in arguments}
        keep = _LOOKS_AT_LOCALS & {n.id for part in body for n in ast.walk(part) if isinstance(n, ast.Name)}
        self._open(names | set(_bound(body)), names & self._kept, everything=bool(keep))
        for argument in arguments:
            if argument.annotation is not None:
                self._visit(argument.annotation)
            argument.arg = self._name(argument.arg)
        if not isinstance(node, ast.Lambda) and node.returns is not None:
            self._visit(node.returns)
        self._visit_all(body)
        self._scopes.pop()

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self._visit(node.generators[0].iter)
        targets = [generator.target for generator in node.generators]
        self._open({n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}, set())
        for number, generator in enumerate(node.generators):
            self._visit_all([generator.target, *([generator.iter] if number else []), *generator.ifs])
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._visit_all(parts)
        self._scopes.pop()

    def _open(self, names: set[str], kept: set[str], *, everything: bool = False) -> None:
        self._scopes.append({name: name if everything or name in kept else "" for name in names})

    def _name(self, name: str) -> str:
        for depth in range(len(self._scopes), 0, -1):
            scope = self._scopes[depth - 1]
            if name in scope and (depth == len(self._scopes) or depth not in self._classes):
                if not scope[name]:
                    # no name of a program: nothing that is global can be taken for it
                    scope[name] = f"{self._met} local"
                    self._met += 1
                return scope[name]
        return name


def _bound(body: Sequence[ast.AST]) -> Iterator[str]:
    """The names that a function's or a class's own statements bind, nested scopes apart."""
    declared: set[str] = set()
    found: list[str] = []
    for node in _own(body):
        if isinstance(node, ast.Global | ast.Nonlocal):
            declared.update(node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.append(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            found += [node.name] if node.name is not None else []
        elif isinstance(node, ast.MatchMapping) and node.rest is not None:
            found.append(node.rest)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            # its name is what other modules call it: it is not a variable that could be renamed
            declared.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return (name for name in dict.fromkeys(found) if name not in declared)


def _own(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        yield node
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(node, _COMPREHENSIONS):
            # the targets are the comprehension's; a walrus in it binds outside
            yield from (n.target for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            continue
        yield from _own(list(ast.iter_child_nodes(node)))
