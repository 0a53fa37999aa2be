"""``overlay inspect``"""

from __future__ import annotations

from dataclasses import asdict

import click

from builder.cli.options import platform_option
from builder.cli.output import Progress, json_option, print_fact, print_json, print_line, print_table, warn
from builder.cli.subject import open_subject
from builder.record.manifest import Manifest
from builder.verify.layered import LayeredImage, Subject
from builder.verify.read_record import Record, find_manifest, other_manifest, read_record
from builder.verify.verify import subject_manifest

_EXAMPLES = """\b
Examples:
  overlay inspect registry.example/sglang@sha256:12ab… --platform linux/arm64
  overlay inspect oci:image --full --json
  overlay inspect sglang-rank0                   a container of the Docker Engine
"""


@click.command("inspect", epilog=_EXAMPLES)
@click.argument("image", metavar="IMAGE|CONTAINER")
@platform_option
@click.option("--full", is_flag=True, help="Read the manifest out of the image's topmost layers too.")
@json_option
def command(image: str, platform: str | None, full: bool, as_json: bool) -> None:
    """Show what is in an image beyond its base, as its labels say; reads one manifest and one config.

    A name with neither / nor : nor @ is a container's; engine:NAME is an image of the Docker Engine. These
    are the image's own words; overlay verify compares them with its bytes.
    """
    from builder.oci.registry.client import Network

    progress = Progress()
    manifest = None
    try:
        with Network(warn=warn) as network, open_subject(image, platform, network, progress) as subject:
            record = read_record(subject.labels, subject.name)
            if full:
                manifest = _manifest(subject, record, progress)
            name, digest, shown_platform = subject.name, subject.digest, subject.platform
    finally:
        progress.close()
    if as_json:
        facts = {"digest": digest, "platform": shown_platform, **asdict(record)}
        print_json(facts if manifest is None else facts | {"contents": manifest.model_dump(mode="json")})
        return
    print_fact("image", f"{name} ({shown_platform})")
    _print_record(record)
    if manifest is None:
        for number, patch in enumerate(record.patches):
            print_fact("" if number else "patches", patch)
    else:
        _print_manifest(manifest)


def _manifest(subject: Subject, record: Record, progress: Progress) -> Manifest:
    """The manifest that the labels name: out of the topmost layer that has one, or as the engine gives it."""
    if isinstance(subject, LayeredImage):
        return find_manifest(subject.image, record, progress.transfer)
    manifest = subject_manifest(subject)
    if manifest.digest != record.manifest:
        raise other_manifest(subject.name, record.manifest, manifest.digest)
    return manifest


def _print_record(record: Record) -> None:
    print_fact("overlay", f"{record.name} ({record.version})")
    print_fact("base", f"{record.base_name or 'oci-layout'}@{record.base_digest}")
    print_fact("source", f"{record.source} {record.revision or ''}".rstrip())
    print_fact("patchset", f"{record.patchset}")
    if record.hardware:
        print_fact("hardware", f"{record.hardware}")
    if record.requires:
        print_fact("requires", record.requires)
    for note in record.notes:
        print_fact("note", note)


def _print_manifest(manifest: Manifest) -> None:
    print_line()
    print_table(
        ("PATCH", "STATUS", "PROBE", "FILE", "POST-IMAGE"),
        [
            (
                patch.name if number == 0 else "",
                patch.status.partition(" ")[0] if number == 0 else "",
                patch.probe if number == 0 else "",
                file.image_path,
                file.post.sha256[:12] if file.post else "removed",
            )
            for patch in manifest.patches
            for number, file in enumerate(patch.files)
        ],
    )
    for one in manifest.requires:
        print_fact("requires", f"{one.name}{one.specifier} ({one.by}): the base has {one.found}")
    for skipped in manifest.skipped:
        rules = ", ".join(dict.fromkeys(dropped.rule for dropped in skipped.dropped))
        print_fact("skipped", f"{skipped.name}: patches.drop leaves out all of its files ({rules})")
