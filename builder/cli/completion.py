"""Names for shell completion: a completion that fails offers nothing, since it must not print over a line."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from builder.errors import OverlayError
from builder.patch.series import read_series_file
from builder.project.project import find_root

IMAGE_TREE = "image:"  # how `overlay probe` names the source inside an image


def complete_series(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Series below ``patches/``."""
    try:
        directory = find_root(ctx.params.get("root")).patches
    except OverlayError:
        return []
    names = sorted(path.parent.name for path in directory.glob("*/series"))
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_tree(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Trees for ``overlay probe``: known releases, overlays, images and directories."""
    from builder.project.releases import known_releases

    try:
        root = find_root(ctx.params.get("root"))
        names = [*known_releases(root.path), *(f"overlay:{name}" for name in root.names()), IMAGE_TREE]
    except OverlayError:
        return []
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def complete_patch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Patches of the series that stands on the line already; of all series without one."""
    try:
        root = find_root(ctx.params.get("root"))
        series = ctx.params.get("series") or _series_of(root, ctx.params.get("name"))
        chosen = (
            [root.patches / series] if series else sorted(p.parent for p in root.patches.glob("*/series"))
        )
        names = dict.fromkeys(name for directory in chosen for name in read_series_file(directory))
    except OverlayError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _series_of(root: object, overlay: str | None) -> str | None:
    """The series of the overlay on the line, for ``overlay show NAME PATCH``."""
    from builder.project.project import Root
    from builder.project.spec import read_spec

    if overlay is None or not isinstance(root, Root):
        return None
    return read_spec(root.spec_path(overlay)).patches.series
