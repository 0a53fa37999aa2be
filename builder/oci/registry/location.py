"""From a reference to the place it names: a repository of a registry, or a layout on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.oci.layout import Layout, SparseLayout
from builder.oci.reference import LayoutReference, Reference

if TYPE_CHECKING:
    from builder.oci.model import ImageSink, ImageSource
    from builder.oci.registry.client import Network


def open_source(location: Reference | LayoutReference, network: Network) -> ImageSource:
    """Where the image is read from. Nothing is asked of it yet."""
    if isinstance(location, LayoutReference):
        return Layout(location.path)
    return network.repository(location)


def open_sink(
    location: Reference | LayoutReference, network: Network, *, complete: bool = False
) -> ImageSink:
    """Where the image is written to. Nothing is written yet.

    Args:
        complete: whether a layout gets the base's layers too.
    """
    if isinstance(location, LayoutReference):
        return Layout(location.path) if complete else SparseLayout(location.path)
    return network.repository(location)


def identifier_of(location: Reference | LayoutReference) -> str:
    """The digest or tag to ask the place for; for a layout that holds one image, neither need be given.

    Raises:
        ImageMismatch: the layout holds no image, or several.
    """
    if isinstance(location, LayoutReference):
        return location.identifier or Layout(location.path).only_image().digest
    return location.identifier
