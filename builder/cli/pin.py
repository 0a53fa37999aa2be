"""``overlay pin``"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.base.image import BaseFiles
from builder.build.pipeline import Shared, plan_overlay
from builder.build.request import Request, Sources
from builder.cli.options import lock_option, name_argument, root_option, source_options
from builder.cli.output import Progress, json_option, print_fact, print_json, print_line, print_table, warn
from builder.errors import ImageMismatch, UsageError
from builder.oci.model import is_digest
from builder.oci.reference import parse_location
from builder.printable import counted
from builder.project.lock import Lock, read_lock, update_lock
from builder.project.pin import Moved, Pin, check_pins, check_spec, pin_command, resolve_pin, spec_location
from builder.project.project import Root, cache_path, find_root
from builder.project.spec import BaseSpec, Spec, read_spec

if TYPE_CHECKING:
    from builder.oci.registry.client import Network

_EXAMPLES = """\b
Examples:
  overlay pin glm53-flash-gb10 --base lmsysorg/sglang:v0.5.20
  overlay pin glm53-flash-gb10                  the spec's own base: fill in its platforms
  overlay pin glm53-flash-gb10 --verify         read its layers once, so that builds need not
  overlay pin glm53-flash-gb10 --check          in CI: did a tag move?
"""


@click.command("pin", epilog=_EXAMPLES)
@name_argument
@click.option("--base", "base_text", metavar="REF", help="Tag or digest to pin (default: the spec's base).")
@click.option("--check", is_flag=True, help="Change nothing; exit 5 if a pinned tag moved or vanished.")
@click.option(
    "--verify", is_flag=True, help="Read the base's layers now: find SGLang in them, check its pre-images."
)
@lock_option
@source_options
@root_option
@json_option
def command(
    name: str,
    base_text: str | None,
    check: bool,
    verify: bool,
    lock_file: Path | None,
    source: str,
    upstream_url: str | None,
    wheel: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Resolve a base's tag to the digests of its index and platforms, and write them to the lock."""
    from builder.oci.registry.client import Network

    project = find_root(root)
    spec = read_spec(project.spec_path(name))
    locks = [lock_file] if lock_file else project.locks(name)
    lock = read_lock(locks)
    progress = Progress()
    facts: dict[str, BaseFiles] = {}
    try:
        with Network(warn=warn) as network:
            if check:
                _check(spec, lock, base_text, network, as_json)
                return
            pin = _resolve(spec, base_text, network)
            if verify:
                sources = Sources(source, upstream_url, wheel)
                facts = _verified(project, spec, pin, sources, network, progress)
    finally:
        progress.close()
    bases = {digest: fact.as_json() for digest, fact in facts.items()}
    pins = {pin.reference: pin.as_json()}
    update_lock(locks, lambda now: replace(now, pins={**now.pins, **pins}, bases={**now.bases, **bases}))
    if as_json:
        print_json({"reference": pin.reference, **pin.as_json(), "verified": bases, "lock": str(locks[0])})
        return
    print_fact("pinned", pin.reference)
    print_fact("index" if pin.is_index else "image", pin.digest)
    for platform, image in pin.images.items():
        print_line(f"{platform!s:<14}{image.digest}{_standing(spec.base, str(platform), image.digest)}")
        if image.digest in facts:
            _print_facts(facts[image.digest])
    print_fact("lock", locks[0])
    if parse_location(pin.reference).name != parse_location(spec.base.image).name:
        print_fact("note", f"not the image that the spec names: build with --base {pin.reference}")


def _verified(
    project: Root, spec: Spec, pin: Pin, sources: Sources, network: Network, progress: Progress
) -> dict[str, BaseFiles]:
    """What the layers of each platform's image say of the files to be patched, by the image's digest.

    Raises:
        ImageMismatch: an image is not what the series was made for.
    """
    location = parse_location(pin.reference).with_digest(pin.digest)
    platforms = list(pin.images) if pin.is_index else []
    request = Request(project, spec.name, str(location), platforms, sources, cache_path(), Lock())
    planned = plan_overlay(request, network, Shared(), say=progress, warn=warn, progress=progress.transfer)
    return {plan.base.manifest.digest: plan.facts for plan in planned.plans}


def _print_facts(facts: BaseFiles) -> None:
    for root in facts.roots:
        installed = f" ({root.distribution} {root.version})" if root.distribution else ""
        print_line(f"{'':<14}{root.path} at /{root.image_path}{installed}")
    print_line(f"{'':<14}{counted(len(facts.files), 'file')} as the series expects")
    for text in facts.warnings:
        warn(text)


def _resolve(spec: Spec, base_text: str | None, network: Network) -> Pin:
    from builder.oci.registry.location import open_source

    if base_text is not None and is_digest(base_text):
        base_text = f"{spec.base.image}@{base_text}"
    location = spec_location(spec) if base_text is None else parse_location(base_text)
    pin = resolve_pin(location, open_source(location, network))
    check_spec(spec.base, pin)
    return pin


def _standing(spec: BaseSpec, platform: str, digest: str) -> str:
    """How a platform's digest stands to the spec."""
    said = spec.platforms.get(platform)
    return "" if said is None else "  as in the spec" if said == digest else f"  the spec has {said[:19]}…"


def _check(spec: Spec, lock: Lock, base_text: str | None, network: Network, as_json: bool) -> None:
    from builder.oci.registry.location import open_source

    if base_text is not None:
        raise UsageError("--check is about what the lock pins; it takes no --base", found=base_text)
    if not lock.pins:
        raise UsageError("the lock pins nothing that could be checked", hint=pin_command(spec))
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
