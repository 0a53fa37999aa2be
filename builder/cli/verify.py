"""``overlay verify``"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.build.pipeline import series_of
from builder.cli.options import platform_option, root_option
from builder.cli.output import Progress, json_option, paint, print_fact, print_json, print_line, warn
from builder.cli.subject import open_subject
from builder.errors import ImageMismatch, UsageError
from builder.oci.reference import parse_location
from builder.printable import counted
from builder.project.lock import read_lock
from builder.project.project import Root, cache_path, find_root
from builder.project.spec import read_spec
from builder.verify.deviation import Deviation
from builder.verify.verify import (
    REPACKED,
    Verified,
    against_lock,
    against_series,
    allowed_in_vain,
    deviation_error,
    differences,
    subject_manifest,
    verify,
)

if TYPE_CHECKING:
    from builder.oci.registry.client import Network
    from builder.record.manifest import Manifest
    from builder.verify.layered import LayeredImage, Subject

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
@click.option(
    "--allow-over",
    multiple=True,
    metavar="PATH",
    help="Files at or below this path in the image may be others: somebody built on it. Can be repeated.",
)
@click.option(
    "--allow-config",
    multiple=True,
    metavar="KEY",
    help="This variable, setting (User, Cmd, …) or label may be another. Can be repeated.",
)
@root_option
@json_option
def command(
    subjects: tuple[str, ...],
    platform: str | None,
    base_text: str | None,
    against: Path | None,
    key_file: Path | None,
    allow_over: tuple[str, ...],
    allow_config: tuple[str, ...],
    root: Path | None,
    as_json: bool,
) -> None:
    """Check that an image or a running container is what was built; exit 5 names all that deviates.

    Recomputes every patched file, and compares all else that decides what runs with the base. With OTHER, the
    two are compared with each other too.

    A name with neither / nor : nor @ is a container's; engine:NAME is an image of the Docker Engine.
    """
    from builder.oci.registry.client import Network

    if len(subjects) > 2:
        raise UsageError("verify takes one image or container, or two to compare", found=" ".join(subjects))
    project = find_root(root)
    progress = Progress()
    try:
        with Network(warn=warn) as network, ExitStack() as stack:
            opened = [
                stack.enter_context(open_subject(text, platform, network, progress)) for text in subjects
            ]
            results = [
                _verify(subject, _Question(project, base_text, against, key_file), network, progress)
                for subject in opened
            ]
    finally:
        progress.close()
    results = [result.allowing(allow_over, allow_config) for result in results]
    if len(results) == 2:
        repacked = _repacked(opened)
        _compare(results[0].having(repacked), results[1], (allow_over, allow_config), as_json)
        return
    (result,) = results
    _report(result.having(allowed_in_vain(result.allowed, allow_over, allow_config)), project, as_json)


@dataclass(frozen=True)
class _Question:
    """What a subject is held against beside itself.

    Args:
        home: the root in use, whose patches may be those of the image.
        base: where the base is, if not where the manifest says.
        lock, key: what the image should be, and who signed it.
    """

    home: Root
    base: str | None
    lock: Path | None
    key: Path | None


def _verify(subject: Subject, question: _Question, network: Network, progress: Progress) -> Verified:
    from builder.launch.server import rank_settings
    from builder.verify.vouched import NOBODY, check_series, find_patches

    manifest = subject_manifest(subject)
    base = _base(manifest, question.base, network, progress)
    result = verify(subject, base, rank_settings())
    series = find_patches(question.home.patches, manifest)
    files = subject.base_files(base)
    if question.lock is not None:
        result = result.having(against_lock(subject, manifest, read_lock([question.lock])))
    if question.key is not None:
        result = result.having(_signatures(subject, manifest, question.key))
    if series is not None and files is not None:
        return result.having(check_series(manifest, series, files, _known_blobs))
    return result if question.lock or question.key else result.having([NOBODY])


def _known_blobs(ids: Collection[str]) -> dict[str, bytes]:
    """What a build brought of the pinned source, so that the base's layers need not be read again."""
    from builder.source.git import GitError, GitStore

    try:
        return GitStore.create(cache_path() / "series.git").blobs(ids)
    except GitError:
        return {}


def _repacked(subjects: Sequence[Subject]) -> Iterator[str]:
    first, second = subjects
    if first.image_id is not None and first.image_id == second.image_id and first.digest != second.digest:
        yield f"{REPACKED}: {first.digest} and {second.digest}"


def _signatures(subject: Subject, manifest: Manifest, key_file: Path) -> Iterator[Deviation]:
    from builder.publish.attach import check_signatures
    from builder.record.signature import read_verifying_key
    from builder.verify.layered import LayeredImage

    if not isinstance(subject, LayeredImage):
        raise UsageError(
            "attestations are kept beside images in registries and layouts",
            found=subject.name,
            hint="verify the image it was made from with --key, and compare: "
            f"overlay verify {shlex.quote(subject.name)} IMAGE",
        )
    image, key = subject.image, read_verifying_key(key_file)
    yield from check_signatures(image.source, image.manifest.digest, manifest, key)


def _base(
    manifest: Manifest, base_text: str | None, network: Network, progress: Progress
) -> LayeredImage | None:
    """The base that a manifest names by digest; None for one that came from a layout."""
    from builder.oci.registry.location import open_source
    from builder.verify.layered import LayeredImage, open_image

    if base_text is None and "/" not in manifest.base.ref:
        return None
    place = parse_location(base_text or manifest.base.ref)
    source = open_source(place.with_digest(manifest.base.digest), network)
    try:
        base = open_image(place, source, manifest.base.digest, None)
    except ImageMismatch as error:
        raise ImageMismatch(
            "the base that the image's manifest names is not there",
            where=place.name,
            expected=manifest.base.digest,
            found=error.what,
            hint="name the repository or layout that has it: --base REF",
        ) from error
    return LayeredImage(base, cache_path(), progress.transfer)


def _compare(
    first: Verified, second: Verified, allowed: tuple[Sequence[str], Sequence[str]], as_json: bool
) -> None:
    from builder.launch.server import rank_settings

    both = replace(first, subject=f"{first.subject} and {second.subject}")
    both = both.having([*second.deviations, *second.notes, *differences(first, second, rank_settings())])
    both = replace(both.allowing(*allowed), declared=())
    both = both.having(allowed_in_vain([*both.allowed, *second.allowed], *allowed))
    if both.deviations:
        raise deviation_error(both)
    if as_json:
        print_json({"subjects": [first.subject, second.subject], "deviations": [], "notes": list(both.notes)})
        return
    same = f"{first.files} patched files, base, patches and their order, environment and start"
    print_line(f"{paint('the same', 'green')}: {same}")
    for note in both.notes:
        print_fact("note", note)


def _report(result: Verified, project: Root, as_json: bool) -> None:
    behind = _behind(result.manifest, project)
    if result.deviations:
        raise deviation_error(result)
    if as_json:
        print_json(result.as_json() | {"series": behind})
        return
    overlay = result.manifest.overlay
    print_line(f"{paint('verified', 'green')}  {result.subject}")
    files = f"{counted(result.files, 'file')} as patched, {counted(result.compared, 'other')} as in the base"
    print_fact("overlay", f"{overlay.name} {overlay.version}, {files}")
    print_fact("base", f"{result.manifest.base.ref}@{result.manifest.base.digest}")
    print_fact("patches", result.manifest.patchset)
    print_fact("manifest", result.manifest.digest)
    for line in result.declared:
        print_fact("set", line)
    for deviation in result.allowed:
        print_fact("allowed", str(deviation))
    for note in result.notes:
        print_fact("note", note)
    for line in behind:
        print_fact("series", line)


def _behind(manifest: Manifest, project: Root) -> list[str]:
    """How the image stands to today's series, where this checkout has its overlay."""
    if manifest.overlay.name not in project.names():
        return []
    spec = read_spec(project.spec_path(manifest.overlay.name))
    return against_series(manifest, series_of(project, spec))
