"""JSON documents of images as they are stored: what kind of manifest some bytes are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builder.errors import ImageMismatch
from builder.oci.model import INDEX_TYPES, MANIFEST_TYPES, OCI_INDEX, OCI_MANIFEST, canonical_json

_KNOWN = MANIFEST_TYPES | INDEX_TYPES


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object that ``data`` holds, which can be written again.

    Raises:
        ImageMismatch: it holds none (``NaN`` and lone surrogates are not JSON); ``where`` names it.
    """
    try:
        value = json.loads(data, parse_constant=_no_number)
        canonical_json(value)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ImageMismatch("this is not a JSON object", where=where, found=repr(data[:60]))
    return value


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")


def media_type_of(data: bytes, said: str, where: str) -> str:
    """The media type of a manifest or index.

    Its own ``mediaType`` counts, since the digest vouches for it; then what the registry or descriptor
    ``said``; then its structure, by which OCI allows to tell them apart. Where two of these disagree, one
    reader would take for an index what another takes for a manifest (CVE-2021-41190), so it is refused.

    Raises:
        ImageMismatch: they disagree, or it is neither a manifest nor an index; ``where`` names it.
    """
    document = json_object(data, where)
    own = document.get("mediaType")
    if own is not None and said in _KNOWN and own != said:
        raise ImageMismatch(
            "a manifest is of one type and given as another", where=where, expected=str(own)[:100], found=said
        )
    built_as = _structure(document)
    media_type = str(own) if own is not None else said if said in _KNOWN else built_as
    if media_type not in _KNOWN or document.get("schemaVersion") != 2:
        raise ImageMismatch(
            "this is not an image that can be read",
            where=where,
            expected="an OCI or Docker schema 2 manifest or index",
            found=(media_type or said or "no media type")[:100],
            hint="images of Docker's schema 1 are too old: push them again with a current tool",
        )
    if built_as != (OCI_INDEX if media_type in INDEX_TYPES else OCI_MANIFEST):
        raise ImageMismatch(
            "a manifest is of one type and built as another",
            where=where,
            expected=media_type,
            found=built_as or "the parts of both, or of neither",
        )
    return media_type


def _structure(document: Mapping[str, object]) -> str:
    """What the parts of a document make it; with parts of both kinds, or of none, it is neither."""
    is_index = "manifests" in document
    is_manifest = "config" in document or "layers" in document
    if is_index == is_manifest:
        return ""
    return OCI_INDEX if is_index else OCI_MANIFEST
