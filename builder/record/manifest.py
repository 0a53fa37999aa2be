"""The applied-patch manifest: what is in an image beyond its base (docs/manifest.schema.json)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from builder import __version__
from builder.errors import ImageMismatch, InvalidInput
from builder.oci.model import canonical_json, sha256_digest
from builder.patch.apply import FileChange, PatchReport
from builder.patch.diff import check_path
from builder.patch.series import SkippedPatch

MANIFEST_PATH = "/usr/share/sglang-overlay/manifest.json"
MANIFEST_SCHEMA = 1
MAX_MANIFEST_BYTES = 4 << 20


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OverlayRecord(_Model):
    """Which overlay it is."""

    name: str
    version: str
    summary: str


class BaseRecord(_Model):
    """The base image, by digest."""

    ref: str = Field(description="Repository of the base, without tag and digest")
    index: str | None = Field(description="Digest of the image index; null for an image without one")
    digest: str = Field(description="Digest of the platform manifest")
    platform: str
    notes: tuple[str, ...] = Field(
        default=(), description="Where the base's own metadata or labels say another source than the pin"
    )
    media_type: str | None = Field(
        default=None,
        description="Of the base's manifest, where the image was converted to OCI's types; else not written",
    )

    @model_serializer(mode="wrap")
    def _without_media_type(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        return {key: value for key, value in written.items() if key != "media_type" or value is not None}


class RequirementRecord(_Model):
    """What was demanded of the base: a distribution, or ``cuda``, in some versions (PEP 440)."""

    name: str
    specifier: str
    by: str = Field(description="The patch that demands it, or 'spec'")
    found: str = Field(description="The version that the base has")


class UpstreamRecord(_Model):
    """The pinned source. ``tree`` is the git tree of exactly the touched files, before the series."""

    repository: str
    release: str
    commit: str | None
    tree: str


class BlobRecord(_Model):
    """A file's bytes, by git blob id and SHA-256."""

    blob: str = Field(pattern="^[0-9a-f]{40}$")
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class HunkRecord(_Model):
    """A hunk's line as declared and as landed, from 1."""

    declared: int
    landed: int


def _check_source_path(path: str) -> str:
    try:
        check_path(path, where="")
    except InvalidInput as error:
        raise ValueError(error.what) from error
    return path


SourcePath = Annotated[str, AfterValidator(_check_source_path)]


class FileRecord(_Model):
    """What a patch did to one file."""

    path: SourcePath
    old_path: SourcePath | None = Field(
        default=None, description="Where it was before, when it was renamed or copied"
    )
    image_path: str
    kind: Literal["modify", "create", "delete", "rename", "copy"]
    mode: str | None = Field(
        pattern="^[0-7]{4}$", description="Permission bits in the image, octal; null for a deleted file"
    )
    pre: BlobRecord | None
    post: BlobRecord | None
    hunks: tuple[HunkRecord, ...]


class DroppedRecord(_Model):
    """A file of a patch that a path rule left out."""

    path: str
    rule: str


class PatchRecord(_Model):
    """One patch of the series."""

    name: str
    sha256: str
    patch_id: str = Field(description="git patch-id --stable")
    subject: str
    status: str
    bugs: tuple[str, ...]
    probe: str = Field(description="defect->fixed, or 'none' for a patch without a probe")
    files: tuple[FileRecord, ...]
    dropped: tuple[DroppedRecord, ...]


class SkippedRecord(_Model):
    """A patch of the series that is not in the image, since rules drop all of its files."""

    name: str
    sha256: str
    subject: str
    dropped: tuple[DroppedRecord, ...]


class RootRecord(_Model):
    """Where a package of the upstream is in the image."""

    path: str
    image_path: str
    distribution: str | None
    version: str | None


class EntrypointRecord(_Model):
    """How containers of the image start: what it was decided for where Python imports from."""

    entrypoint: tuple[str, ...]
    command: tuple[str, ...] = Field(description="What follows the entry point where nobody says otherwise")
    user: str
    working_dir: str
    python: str | None = Field(description="The entry point's own Python, else the one that PATH names")
    searched: tuple[str, ...] = Field(
        description="Where it looks for packages, the first ones first; also directories that are not there"
    )
    declared: dict[str, Any] = Field(
        description="Other settings that the template declares over the base's: labels, volumes and such"
    )


class Manifest(_Model):
    """The applied-patch manifest."""

    schema_version: Literal[1] = 1
    tool: str
    overlay: OverlayRecord
    base: BaseRecord
    upstream: UpstreamRecord
    patched_tree: str
    patchset: str
    roots: tuple[RootRecord, ...]
    hardware: tuple[str, ...] = Field(default=(), description="Compute capabilities it is for")
    requires: tuple[RequirementRecord, ...] = ()
    patches: tuple[PatchRecord, ...]
    bytecode: tuple[str, ...] = Field(description="Bytecode of the base made harmless (emptied)")
    environment: dict[str, str] = Field(
        default_factory=dict, description="The variables that the image has over or instead of the base's"
    )
    entrypoint: EntrypointRecord | None = Field(
        default=None, description="Not written by versions that did not know it, like environment"
    )
    skipped: tuple[SkippedRecord, ...] = Field(
        default=(), description="Patches that rules leave out whole; not written where there are none"
    )

    @model_serializer(mode="wrap")
    def _without_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Manifests that say nothing of a later thing are what they were before there was such a thing."""
        written: dict[str, Any] = write(self)
        later = ("skipped", *(("environment", "entrypoint") if self.entrypoint is None else ()))
        return {key: value for key, value in written.items() if key not in later or value}

    def as_bytes(self) -> bytes:
        """Canonical JSON, with a newline at its end."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    @property
    def digest(self) -> str:
        """``sha256:…`` of :meth:`as_bytes`."""
        return sha256_digest(self.as_bytes())


def read_manifest(data: bytes, *, where: str) -> Manifest:
    """Read a manifest out of an image.

    Raises:
        ImageMismatch: it is too large, no manifest, or of a schema this version does not know.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise ImageMismatch("applied-patch manifest is too large", where=where, found=f"{len(data)} bytes")
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ImageMismatch(
            "applied-patch manifest cannot be read",
            where=where,
            expected=f"schema version {MANIFEST_SCHEMA} of overlay {__version__}",
            found=f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="it may be of a newer overlay: update it",
        ) from error


def json_schema() -> dict[str, Any]:
    """The manifest's JSON Schema."""
    schema = Manifest.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "applied-patch manifest",
    } | schema


def as_text(decoded: str) -> str:
    """What JSON and a Dockerfile can hold of a mail's header: bytes that are not UTF-8 become U+FFFD."""
    return decoded.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def patch_record(
    report: PatchReport, patch_id: str, probe: str, image_paths: dict[str, str], modes: dict[str, str]
) -> PatchRecord:
    """The record of one patch.

    Args:
        report: what the patch did.
        patch_id: its stable patch-id.
        probe: what its probe said.
        image_paths: path in the image, by upstream path.
        modes: permission bits in the image (octal), by upstream path.

    Raises:
        InvalidInput: a file's name is not UTF-8, and a manifest cannot name it.
    """
    patch = report.patch
    named = [path for change in report.files for path in (change.path, change.old_path) if path]
    _check_names(patch.name, [*named, *(path for path, _ in report.dropped)])
    return PatchRecord(
        name=patch.name,
        sha256=patch.sha256,
        patch_id=patch_id,
        subject=as_text(patch.subject),
        status=str(patch.status),
        bugs=patch.bugs,
        probe=probe,
        files=tuple(_file_record(change, image_paths, modes) for change in report.files),
        dropped=tuple(DroppedRecord(path=path, rule=rule) for path, rule in report.dropped),
    )


def skipped_record(skipped: SkippedPatch) -> SkippedRecord:
    """The record of a patch that is not in the image; raises as :func:`patch_record`."""
    _check_names(skipped.patch.name, [path for path, _ in skipped.dropped])
    return SkippedRecord(
        name=skipped.patch.name,
        sha256=skipped.patch.sha256,
        subject=as_text(skipped.patch.subject),
        dropped=tuple(DroppedRecord(path=path, rule=rule) for path, rule in skipped.dropped),
    )


def _check_names(patch: str, paths: Iterable[str]) -> None:
    for path in paths:
        if as_text(path) != path:
            raise InvalidInput(
                "a file's name is not UTF-8, and the image's manifest cannot name it",
                where=f"{patch}.patch",
                expected="a name in UTF-8",
                found=repr(os.fsencode(path)),
                hint="rename the file in the patch",
            )


def _file_record(change: FileChange, image_paths: dict[str, str], modes: dict[str, str]) -> FileRecord:
    pre, post = (
        None if source is None else BlobRecord(blob=source.blob, sha256=source.sha256)
        for source in (change.pre, change.post)
    )
    return FileRecord(
        path=change.path,
        old_path=change.old_path if change.kind in ("rename", "copy") else None,
        image_path=image_paths[change.path],
        kind=change.kind,
        mode=None if change.kind == "delete" else modes[change.path],
        pre=pre,
        post=post,
        hunks=tuple(HunkRecord(declared=hunk.declared, landed=hunk.landed) for hunk in change.hunks),
    )
