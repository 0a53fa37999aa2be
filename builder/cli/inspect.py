"""``overlay inspect``"""

from __future__ import annotations

from dataclasses import asdict

import click

from builder.cli.options import platform_option
from builder.cli.output import Progress, json_option, print_fact, print_json, print_table, warn
from builder.image.model import Platform
from builder.image.reference import parse_location
from builder.manifest import Manifest
from builder.trust.record import Record, find_manifest, read_record
from builder.trust.subject import labels_of, open_image

_EXAMPLES = """\b
Examples:
  overlay inspect registry.example/sglang:v0.5.20-glm53-flash-gb10 --platform linux/arm64
  overlay inspect oci:image --full --json
"""


@click.command("inspect", epilog=_EXAMPLES)
@click.argument("image", metavar="IMAGE")
@platform_option
@click.option("--full", is_flag=True, help="Read the manifest out of the image's topmost layers too.")
@json_option
def command(image: str, platform: str | None, full: bool, as_json: bool) -> None:
    """What is in an image beyond its base, as its labels say: one manifest and one config are read.

    These are the image's own words; overlay verify holds them against its bytes.
    """
    from builder.image.location import identifier_of, open_source
    from builder.image.registry import Network

    location = parse_location(image)
    progress = Progress()
    manifest = None
    try:
        with Network(warn=warn) as network:
            source = open_source(location, network)
            wanted = Platform.parse(platform) if platform else None
            found = open_image(location, source, identifier_of(location), wanted)
            record = read_record(labels_of(found.config), f"{location.name}@{found.manifest.digest}")
            if full:
                manifest = find_manifest(found, record, progress.transfer)
    finally:
        progress.close()
    if as_json:
        facts = {"digest": found.manifest.digest, "platform": str(found.platform), **asdict(record)}
        print_json(facts if manifest is None else facts | {"contents": manifest.model_dump(mode="json")})
        return
    print_fact("image", f"{location.name}@{found.manifest.digest} ({found.platform})")
    _print_record(record)
    if manifest is None:
        for number, name in enumerate(record.patches):
            print_fact("" if number else "patches", name)
    else:
        _print_manifest(manifest)


def _print_record(record: Record) -> None:
    print_fact("overlay", f"{record.name} ({record.version})")
    print_fact("base", f"{record.base_name}@{record.base_digest}")
    print_fact("source", f"{record.source} {record.revision or ''}".rstrip())
    print_fact("patchset", f"{record.patchset}")
    if record.hardware:
        print_fact("hardware", f"{record.hardware}")


def _print_manifest(manifest: Manifest) -> None:
    click.echo()
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
