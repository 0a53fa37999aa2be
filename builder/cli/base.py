"""``overlay base``"""

from __future__ import annotations

from pathlib import Path

import click

from builder.cli.options import root_option
from builder.cli.output import Progress, json_option, print_json, print_line, warn
from builder.errors import UsageError
from builder.oci.model import Platform
from builder.oci.reference import parse_location
from builder.project.project import Root, cache_path, find_root
from builder.project.spec import Wheel, read_spec


@click.group("base", epilog="Example: overlay base wheel sglang==0.5.20 --output oci:base")
def command() -> None:
    """Make small base images to try and to test with."""


@command.command("wheel", epilog="Example: overlay base wheel sglang==0.5.20 --output oci:base")
@click.argument("requirement", metavar="REQUIREMENT")
@click.option(
    "--output", required=True, metavar="oci:DIR[:TAG]|REF", help="Layout or repository to write to."
)
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    metavar="OS/ARCH",
    default=("linux/amd64", "linux/arm64"),
    help="Platforms of the image index; repeatable (default: linux/amd64 and linux/arm64).",
)
@click.option(
    "--family", type=click.Choice(["oci", "docker"]), default="oci", show_default=True, help="Media types."
)
@click.option(
    "--sha256", metavar="HEX", help="The wheel's SHA-256 (default: as a spec or the known releases pin it)."
)
@click.option(
    "--wheel",
    "wheel_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The wheel, already downloaded.",
)
@root_option
@json_option
def wheel(
    requirement: str,
    output: str,
    platforms: tuple[str, ...],
    family: str,
    sha256: str | None,
    wheel_file: Path | None,
    root: Path | None,
    as_json: bool,
) -> None:
    """Make a base image with only SGLang's sources, from a release wheel; nothing in it runs.

    Sources are where the real images have them, found through an editable install's .pth file.
    """
    from builder.base.wheelbase import write_wheel_base
    from builder.oci.registry.client import Network
    from builder.oci.registry.location import open_sink

    location = parse_location(output)
    if location.digest:
        raise UsageError("the digest is what making the base finds out", found=output)
    progress = Progress()
    try:
        path = _wheel(requirement, sha256, wheel_file, find_root(root), progress)
        progress(f"making a base of {path.name}")
        with Network(warn=warn) as network:
            sink = open_sink(location, network, complete=True)
            tag = location.tag or requirement.partition("==")[2] or "latest"
            made = write_wheel_base(
                path, sink, platforms=[Platform.parse(text) for text in platforms], family=family, tag=tag
            )
    finally:
        progress.close()
    reference = f"{location.name}@{made.manifest.digest}"
    if as_json:
        print_json(
            {
                "reference": reference,
                "digest": made.manifest.digest,
                "version": made.version,
                "images": {str(image.platform): image.digest for image in made.images},
            }
        )
        return
    print_line(reference)


def _wheel(requirement: str, sha256: str | None, file: Path | None, root: Root, progress: Progress) -> Path:
    """The wheel's file, as given or downloaded; held to the SHA-256 that is given or pinned."""
    from builder.source.wheel import check_wheel, download_wheel

    pinned = _pin(requirement, sha256, root)
    if file is None:
        if pinned is None:
            raise UsageError(
                "this wheel is not pinned",
                where=requirement,
                expected=f"one of {', '.join(_pinned(root))}",
                hint="name its SHA-256 with --sha256 (the package index shows it), or its file with --wheel",
            )
        return download_wheel(pinned, cache_path(), progress=progress)
    if not file.name.startswith(requirement.replace("==", "-") + "-"):
        raise UsageError("the file is of another wheel", expected=requirement, found=file.name)
    if pinned is not None:
        check_wheel(file, pinned)
    return file


def _pinned(root: Root) -> dict[str, Wheel]:
    """The wheels that the table of releases and the specs pin, by requirement."""
    from builder.project.releases import known_releases

    pins = [pin.wheel for pin in known_releases(root.path).values()]
    pins += [read_spec(root.spec_path(name)).upstream.wheel for name in root.names()]
    return {pin.requirement: pin for pin in pins if pin is not None}


def _pin(requirement: str, sha256: str | None, root: Root) -> Wheel | None:
    """The wheel with the SHA-256 that is given, else as it is pinned."""
    if sha256 is None:
        return _pinned(root).get(requirement)
    try:
        return Wheel(requirement=requirement, sha256=sha256)
    except ValueError as error:
        raise UsageError(
            "not the pin of a wheel",
            where=requirement,
            expected="NAME==VERSION, and 64 hex digits in lower case",
            found=sha256,
        ) from error
