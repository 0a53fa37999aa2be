"""What a command is about: an image in a registry or layout, or an image or container of a Docker Engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from builder.cli.output import Progress
from builder.oci.model import Platform
from builder.oci.reference import parse_location
from builder.project.project import cache_path

if TYPE_CHECKING:
    from builder.oci.registry.client import Network
    from builder.verify.layered import Subject


def is_in_engine(text: str) -> bool:
    """Whether a Docker Engine is meant: by a scheme, or by a word that could only be a container's name."""
    return text.startswith(("engine:", "container:")) or not set(text) & set("/:@")


@contextmanager
def open_subject(text: str, platform: str | None, network: Network, progress: Progress) -> Iterator[Subject]:
    """Open what the command line names.

    Args:
        text: an image's reference, ``engine:IMAGE``, ``container:NAME``, or a container's bare name.
        platform: to take of an index.
        network: the registries.
        progress: shows what takes time.

    Raises:
        ImageMismatch: it is not there.
        Unavailable: a registry or the engine does not answer.
    """
    if is_in_engine(text):
        from builder.publish.docker_engine.connection import connect
        from builder.publish.docker_engine.inspected import open_container, open_engine_image

        scheme, _, name = text.partition(":")
        with connect() as engine:
            opened = (
                open_engine_image(engine, name)
                if scheme == "engine"
                else open_container(engine, name or text)
            )
            with opened as subject:
                yield subject
        return
    from builder.oci.registry.location import identifier_of, open_source
    from builder.verify.layered import LayeredImage, open_image

    location = parse_location(text)
    source = open_source(location, network)
    wanted = Platform.parse(platform) if platform else None
    image = open_image(location, source, identifier_of(location), wanted)
    yield LayeredImage(image, cache_path(), progress.transfer)
