"""``overlay attest``"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli.options import platform_option, root_option
from builder.cli.output import Progress, json_option, print_fact, print_json, print_table, warn
from builder.oci.model import Platform
from builder.oci.reference import parse_location
from builder.project.project import Root, find_root

if TYPE_CHECKING:
    from builder.base.image import Base
    from builder.oci.model import ImageSource
    from builder.publish.attach import Attached

_EXAMPLES = """\b
Examples:
  overlay attest registry.example/sglang@sha256:12ab… --sign-key key.pem
  overlay attest registry.example/sglang@sha256:12ab… --list
"""


@click.command("attest", epilog=_EXAMPLES)
@click.argument("image", metavar="IMAGE")
@platform_option
@click.option("--list", "only_list", is_flag=True, help="Attach nothing: list what is attached.")
@click.option(
    "--sign-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sign the attestations with this ed25519 key (PEM).",
)
@root_option
@json_option
def command(
    image: str, platform: str | None, only_list: bool, sign_key: Path | None, root: Path | None, as_json: bool
) -> None:
    """Attach attestations to an image that overlay made, from what is in it, and list all that is attached.

    Provenance, the applied patches and a CycloneDX document, as OCI referrers. Attaching them twice
    changes nothing.
    """
    from builder.oci.registry.client import Network
    from builder.oci.registry.location import identifier_of, open_source
    from builder.publish.attach import list_attached
    from builder.verify.layered import open_image, open_images

    location = parse_location(image)
    progress = Progress()
    listed: dict[str, list[Attached]] = {}
    try:
        with Network(warn=warn) as network:
            source = open_source(location, network)
            identifier = identifier_of(location)
            if platform is None:
                images = open_images(location, source, identifier)
            else:
                images = [open_image(location, source, identifier, Platform.parse(platform))]
            for found in images:
                if not only_list:
                    _attach(source, found, find_root(root), sign_key, progress)
                listed[found.manifest.digest] = list_attached(source, found.manifest.digest)
    finally:
        progress.close()
    if as_json:
        print_json({digest: [asdict(entry) for entry in entries] for digest, entries in listed.items()})
        return
    for digest, entries in listed.items():
        print_fact("image", f"{location.name}@{digest}")
        if not entries:
            print_fact("attached", "nothing")
            continue
        rows = [(e.digest[:19] + "…", e.artifact_type, e.predicate_type or "") for e in entries]
        print_table(("ATTACHED", "TYPE", "PREDICATE"), rows)


def _attach(
    source: ImageSource, image: Base, project: Root, sign_key: Path | None, progress: Progress
) -> None:
    from builder.publish.attach import attach_documents, attest_image

    key: Any = None
    if sign_key is not None:
        from builder.record.signature import read_signing_key

        key = read_signing_key(sign_key)
    patches = _patches_at_hand(project)
    documents = attest_image(image, patches=patches, key=key, progress=progress.transfer)
    attach_documents(source, image.manifest.descriptor, documents)


def _patches_at_hand(project: Root) -> dict[str, bytes]:
    """Every patch file of this checkout by its SHA-256: an image's own are known again by that."""
    files = [path.read_bytes() for path in sorted(project.patches.glob("*/*.patch")) if path.is_file()]
    return {hashlib.sha256(data).hexdigest(): data for data in files}
