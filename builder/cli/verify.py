"""``overlay verify``"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.build.pipeline import series_of
from builder.cli.options import platform_option, root_option
from builder.cli.output import Progress, json_option, paint, print_fact, print_json, print_line, warn
from builder.cli.subject import open_subject
from builder.errors import ImageMismatch, UsageError
from builder.oci.reference import parse_location
from builder.project.lock import read_lock
from builder.project.project import Root, find_root
from builder.project.spec import read_spec
from builder.verify.verify import (
    BaseLayers,
    Deviation,
    Verified,
    against_lock,
    against_series,
    deviation_error,
    differences,
    subject_manifest,
    verify,
)

if TYPE_CHECKING:
    from builder.oci.registry.client import Network
    from builder.record.manifest import Manifest
    from builder.verify.layered import Subject

_EXAMPLES = """\b
Examples:
  overlay verify registry.example/sglang@sha256:12ab… --against overlays/glm53-flash-gb10.lock
  overlay verify sglang-rank0                    a container of the Docker Engine, as it runs now
  overlay verify engine:sglang:patched           an image of the Docker Engine
  overlay verify sglang-rank0 oci:image          what differs between the two
"""


@click.command("verify", epilog=_EXAMPLES)
@click.argument("subjects", metavar="IMAGE|CONTAINER [OTHER]", nargs=-1, required=True)
@platform_option
@click.option("--base", "base_text", metavar="REF", help="Where the base is (default: as the manifest says).")
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="LOCK",
    help="It must also be what this lock says was built.",
)
@click.option(
    "--key",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Attestations signed by this ed25519 public key (PEM) must say the same.",
)
@root_option
@json_option
def command(
    subjects: tuple[str, ...],
    platform: str | None,
    base_text: str | None,
    against: Path | None,
    key_file: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Recompute every patched file of an image or a running container; exit 5 names all that deviates.

    A name with neither / nor : nor @ is a container's; engine:NAME is an image of the Docker Engine.
    """
    from builder.oci.registry.client import Network

    if len(subjects) > 2:
        raise UsageError("verify takes one image or container, or two to compare", found=" ".join(subjects))
    progress = Progress()
    try:
        with Network(warn=warn) as network, ExitStack() as stack:
            opened = [
                stack.enter_context(open_subject(text, platform, network, progress)) for text in subjects
            ]
            results = [_verify(subject, base_text, network) for subject in opened]
            if against is not None:
                lock = read_lock([against])
                results = [
                    result.with_deviations(against_lock(subject, result.manifest, lock))
                    for subject, result in zip(opened, results, strict=True)
                ]
            if key_file is not None:
                results = [
                    result.with_deviations(_signatures(subject, result.manifest, key_file))
                    for subject, result in zip(opened, results, strict=True)
                ]
    finally:
        progress.close()
    if len(results) == 2:
        _compare(results, as_json)
        return
    _report(results[0], find_root(root), as_json)


def _verify(subject: Subject, base_text: str | None, network: Network) -> Verified:
    return verify(subject, _base_layers(subject_manifest(subject), base_text, network))


def _signatures(subject: Subject, manifest: Manifest, key_file: Path) -> Iterator[Deviation]:
    from builder.publish.attach import check_signatures
    from builder.record.signature import read_verifying_key
    from builder.verify.layered import LayeredImage

    if not isinstance(subject, LayeredImage):
        raise UsageError(
            "attestations are kept beside images in registries and layouts",
            found=subject.name,
            hint="verify the image it was made from with --key, and compare: overlay verify CONTAINER IMAGE",
        )
    image, key = subject.image, read_verifying_key(key_file)
    yield from check_signatures(image.source, image.manifest.digest, manifest, key)


def _base_layers(manifest: Manifest, base_text: str | None, network: Network) -> BaseLayers | None:
    """The layers of the base that a manifest names by digest; None for a base that came from a layout."""
    from builder.oci.append import base_config, base_layers, diff_ids
    from builder.oci.registry.location import open_source

    if base_text is None and "/" not in manifest.base.ref:
        return None
    place = parse_location(base_text or manifest.base.ref)
    source = open_source(place.with_digest(manifest.base.digest), network)
    try:
        found = source.get_manifest(manifest.base.digest)
    except ImageMismatch as error:
        raise ImageMismatch(
            "the base that the image's manifest names is not there",
            where=place.name,
            expected=manifest.base.digest,
            found=error.what,
            hint="name the repository or layout that has it: --base REF",
        ) from error
    config = source.read_blob(base_config(found))
    return BaseLayers(diff_ids(config), tuple(layer.digest for layer in base_layers(found)))


def _compare(results: Sequence[Verified], as_json: bool) -> None:
    first, second = results
    found = tuple(differences([first.subject, second.subject], [first.manifest, second.manifest]))
    found = tuple(dict.fromkeys([*first.deviations, *second.deviations, *found]))
    if found:
        raise deviation_error(
            Verified(f"{first.subject} and {second.subject}", first.manifest, found, (), first.files)
        )
    if as_json:
        print_json({"subjects": [first.subject, second.subject], "deviations": []})
        return
    print_line(f"{paint('the same', 'green')}: {first.files} patched files, base, patches and their order")


def _report(result: Verified, home: Root, as_json: bool) -> None:
    behind = _behind(result.manifest, home)
    if result.deviations:
        raise deviation_error(result)
    if as_json:
        print_json(result.as_json() | {"series": behind})
        return
    overlay = result.manifest.overlay
    print_line(f"{paint('verified', 'green')}  {result.subject}")
    print_fact("overlay", f"{overlay.name} {overlay.version}, {result.files} files as patched")
    print_fact("base", f"{result.manifest.base.ref}@{result.manifest.base.digest}")
    print_fact("patches", result.manifest.patchset)
    print_fact("manifest", result.manifest.digest)
    for note in result.notes:
        print_fact("note", note)
    for line in behind:
        print_fact("series", line)


def _behind(manifest: Manifest, home: Root) -> list[str]:
    """How the image stands to today's series, where this checkout has its overlay."""
    if manifest.overlay.name not in home.names():
        return []
    spec = read_spec(home.spec_path(manifest.overlay.name))
    return against_series(manifest, series_of(home, spec))
