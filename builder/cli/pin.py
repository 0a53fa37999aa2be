"""``overlay pin``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.options import lock_option, name_argument, root_option
from builder.cli.output import json_option, print_json, print_table, warn
from builder.errors import ImageMismatch, UsageError
from builder.lock import Lock, read_lock, write_lock
from builder.pinning import Moved, Pin, check_pins, check_spec, resolve_pin, spec_location
from builder.root import find_root
from builder.spec import BaseSpec, read_spec

if TYPE_CHECKING:
    from builder.image.registry import Network

_EXAMPLES = """\b
Examples:
  overlay pin glm53-flash-gb10 --base lmsysorg/sglang:v0.5.20
  overlay pin glm53-flash-gb10                  the spec's own base: fill in its platforms
  overlay pin glm53-flash-gb10 --check          in CI: did a tag move?
"""


@click.command("pin", epilog=_EXAMPLES)
@name_argument
@click.option("--base", "base_text", metavar="REF", help="Tag or digest to pin (default: the spec's base).")
@click.option("--check", is_flag=True, help="Change nothing; exit 5 if a pinned tag moved or vanished.")
@lock_option
@root_option
@json_option
def command(
    name: str, base_text: str | None, check: bool, lock_file: Path | None, root: Path | None, as_json: bool
) -> None:
    """Resolve a base's tag to the digests of its index and platforms, and write them to the lock."""
    from builder.image.registry import Network

    home = find_root(root)
    spec = read_spec(home.spec_path(name)).base
    lock = read_lock([lock_file] if lock_file else home.locks(name))
    with Network(warn=warn) as network:
        if check:
            _check(spec, lock, base_text, network, as_json)
            return
        pin = _resolve(spec, base_text, network)
    written = lock_file or home.lock_path(name)
    write_lock(written, replace(lock, pins={**lock.pins, pin.reference: pin.as_json()}))
    if as_json:
        print_json({"reference": pin.reference, **pin.as_json(), "lock": str(written)})
        return
    click.echo(f"pinned    {pin.reference}")
    click.echo(f"{'index' if pin.is_index else 'image':<10}{pin.digest}")
    for platform, image in pin.images.items():
        click.echo(f"{platform!s:<14}{image.digest}{_standing(spec, str(platform), image.digest)}")
    click.echo(f"lock      {written}")


def _resolve(spec: BaseSpec, base_text: str | None, network: Network) -> Pin:
    from builder.image.location import open_source
    from builder.image.model import is_digest
    from builder.image.reference import parse_location

    if base_text is not None and is_digest(base_text):
        base_text = f"{spec.image}@{base_text}"
    location = spec_location(spec) if base_text is None else parse_location(base_text)
    pin = resolve_pin(location, open_source(location, network))
    check_spec(spec, pin)
    return pin


def _standing(spec: BaseSpec, platform: str, digest: str) -> str:
    """How a platform's digest stands to the spec."""
    said = spec.platforms.get(platform)
    return "" if said is None else "  as in the spec" if said == digest else f"  the spec has {said[:19]}…"


def _check(spec: BaseSpec, lock: Lock, base_text: str | None, network: Network, as_json: bool) -> None:
    from builder.image.location import open_source

    if base_text is not None:
        raise UsageError("--check is about what the lock pins; it takes no --base", found=base_text)
    if not lock.pins:
        raise UsageError("the lock pins nothing that could be checked", hint="overlay pin NAME --base REF")
    moved = check_pins(lock.pins, lambda location: open_source(location, network))
    if moved:
        raise _moved_error(moved)
    if as_json:
        print_json({"pins": sorted(lock.pins), "moved": []})
        return
    print_table(("PIN", "DIGEST"), [(key, str(pin["digest"])) for key, pin in sorted(lock.pins.items())])


def _moved_error(moved: Sequence[Moved]) -> ImageMismatch:
    first, *rest = moved
    lines = [
        f"{entry.reference}: {entry.what}: {entry.expected} → {entry.found or 'nothing'}" for entry in rest
    ]
    return ImageMismatch(
        f"{len(moved)} pins are not so any more" if rest else first.what,
        where=first.reference,
        expected=first.expected,
        found=first.found or "nothing",
        hint=first.hint or "builds go on with the pinned digest; to follow the tag: overlay pin",
        details="\n".join(lines) or None,
        facts={"moved": [vars(entry) for entry in moved]},
    )
