"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from builder.record.signature import SigningKey

root_option = click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="OVERLAY_ROOT",
    help="Directory with overlays/ and patches/ (default: this checkout, else the installed ones).",
)

accept_text_option = click.option(
    "--accept-text",
    multiple=True,
    metavar="PATCH",
    help="Retire this patch on text alone: it has no probe, and you have looked. Can be repeated.",
)


def _require_sandbox(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        os.environ["OVERLAY_REQUIRE_SANDBOX"] = "1"  # read where a probe's process is started


sandbox_option = click.option(
    "--require-sandbox",
    is_flag=True,
    expose_value=False,
    callback=_require_sandbox,
    help="Run no probe where the kernel cannot hold it (exit 7); see overlay doctor.",
)

platform_option = click.option(
    "--platform", metavar="OS/ARCH", help="Which image of an index; need not be given where there is one."
)

format_option = click.option(
    "--format",
    type=click.Choice(["base", "oci"]),
    default="base",
    show_default=True,
    help="Media types of the image: as its base's, or OCI's, which every tool reads from a layout.",
)

sign_key_option = click.option(
    "--sign-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sign the attestations with this ed25519 key (PEM).",
)


def read_key(path: Path | None) -> SigningKey | None:
    """The key of ``--sign-key``."""
    if path is None:
        return None
    from builder.record.signature import read_signing_key

    return read_signing_key(path)


lock_option = click.option(
    "--lock",
    "lock_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The lock to read and write (default: overlays/NAME.lock; read-only sets: overlay help install).",
)


def source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where the upstream's sources come from."""
    options = [
        click.option(
            "--source",
            type=click.Choice(["auto", "wheel", "repository"]),
            default="auto",
            show_default=True,
            help="Take the pinned sources from the release wheel or from the repository.",
        ),
        click.option(
            "--upstream-url",
            metavar="URL|PATH",
            envvar="OVERLAY_UPSTREAM_URL",
            help="Fetch the pinned commit from this mirror or local repository.",
        ),
        click.option(
            "--wheel",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The pinned release wheel, already downloaded.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def changes_project(command: Callable[..., None] | None = None, *, option: str = "") -> Callable[..., Any]:
    """Decorate a command that changes files of the project: it waits until no other one does.

    Args:
        command: its function, with a ``root`` parameter.
        option: the parameter without which it changes nothing.
    """
    if command is None:
        return partial(changes_project, option=option)

    @wraps(command)
    def changing(**given: Any) -> None:
        if option and not given[option]:
            return command(**given)
        from builder.cli.output import warn
        from builder.project.project import find_root

        with find_root(given["root"]).exclusive(warn):
            return command(**given)

    return changing


def complete_overlay(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Overlay names for shell completion."""
    from click.shell_completion import CompletionItem

    from builder.errors import OverlayError
    from builder.project.project import find_root

    try:
        names = find_root(ctx.params.get("root")).names()
    except OverlayError:
        return []  # a completion that fails must not print over the user's line
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


name_argument = click.argument("name", shell_complete=complete_overlay)
