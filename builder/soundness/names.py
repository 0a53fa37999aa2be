"""Names of a Python file that nothing defines: pyflakes, told what is not a name and what cannot be known."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from pyflakes import checker, messages

from builder.soundness.interface import only_checked

# Of Pythons newer than the one that runs here.
_NEWER = ("PythonFinalizationError",)
_KINDS = (messages.UndefinedName, messages.UndefinedLocal, messages.UndefinedExport, messages.ImportStarUsage)


@dataclass(frozen=True)
class Undefined:
    """A name that its file does not define.

    Args:
        name: the name.
        line: where it stands, from 1.
        through_star: it may come from one of the file's star imports.
        is_export: ``__all__`` has it; nothing else is wrong with it.
    """

    name: str
    line: int
    through_star: bool = False
    is_export: bool = False


class _Checker(checker.Checker):
    """Names that are looked up when the code runs: what stands in strings is none, nor what is postponed.

    What only a type checker sees defines nothing.
    """

    def IF(self, node: ast.If) -> None:  # noqa: N802 - pyflakes' name
        """``if``: the part for type checkers is passed over."""
        unseen, runs = only_checked(node)
        if unseen is None:
            self.handleChildren(node)
            return
        for part in (node.test, *runs):
            self.handleNode(part, node)

    def handleStringAnnotation(self, *ignored: Any, **named: Any) -> None:  # noqa: N802 - pyflakes' name
        """A string in an annotation is text: ``Annotated[int, "help text"]``."""

    def handleAnnotation(self, annotation: Any, node: Any) -> None:  # noqa: N802 - pyflakes' name
        """An annotation of a local variable is never evaluated, nor any where the file postpones them."""
        is_local = isinstance(node, ast.AnnAssign) and isinstance(self.scope, checker.FunctionScope)
        if not (self.annotationsFutureEnabled or is_local):
            super().handleAnnotation(annotation, node)


def undefined_names(tree: ast.Module, name: str) -> list[Undefined]:
    """The names that a file uses and does not define, in the order of its lines.

    Args:
        tree: the file.
        name: of the file; ``__init__.py`` has names of its own.

    Raises:
        RecursionError: it is nested too deeply to be looked at.
    """
    found = []
    for message in _Checker(tree, name, builtins=_NEWER, withDoctest=False).messages:
        if isinstance(message, _KINDS):
            through_star = isinstance(message, messages.ImportStarUsage)
            is_export = isinstance(message, messages.UndefinedExport)
            found.append(
                Undefined(str(message.message_args[0]), int(message.lineno), through_star, is_export)
            )
    return sorted(found, key=lambda use: use.line)
