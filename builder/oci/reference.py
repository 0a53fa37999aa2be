"""Names of images: in a registry (the grammar of distribution/reference) or in an OCI layout on disk."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from builder.errors import InvalidInput
from builder.oci.model import is_digest

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"
LONGEST_NAME = 255  # characters of registry, slash and repository, as in distribution/reference
LAYOUT_SCHEME = "oci:"

_HOST_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY = re.compile(rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_PATH_PART = r"[a-z0-9]+(?:(?:[_.]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PATH_PART}(?:/{_PATH_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HEX_ID = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"(?:docker|https?)://")


@dataclass(frozen=True)
class Reference:
    """An image, or a whole repository, in a registry.

    Args:
        registry: host and optional port in lower case: ``docker.io``, ``localhost:5000``, ``[::1]:5000``.
        repository: the path in it: ``library/debian``.
        tag: the name that may move, if given.
        digest: ``sha256:…``, if given; where both are, the digest decides.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """Registry and repository, with neither tag nor digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def identifier(self) -> str:
        """What to ask the registry for: the digest, else the tag, else ``latest``."""
        return self.digest or self.tag or DEFAULT_TAG

    @property
    def canonical(self) -> str:
        """Everything spelled out: ``docker.io/library/debian:12@sha256:…``."""
        return self.name + self._suffix

    @property
    def familiar(self) -> str:
        """What people write: Docker Hub's host and its ``library/`` are left out, where that reads back."""
        if self.registry != DEFAULT_REGISTRY:
            return self.canonical
        owner, _, rest = self.repository.partition("/")
        short = rest if owner == "library" and rest and "/" not in rest else self.repository
        return self.canonical if _names_a_registry(short) else short + self._suffix

    @property
    def _suffix(self) -> str:
        return (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    def with_digest(self, digest: str) -> Reference:
        """The same name and tag, held to ``digest``."""
        return replace(self, digest=_checked_digest(digest, digest))

    def with_tag(self, tag: str) -> Reference:
        """The same repository under ``tag``, with no digest."""
        return replace(self, tag=_checked_tag(tag, tag), digest=None)

    def __str__(self) -> str:
        return self.canonical


@dataclass(frozen=True)
class LayoutReference:
    """An image in an OCI layout: ``oci:DIR``, ``oci:DIR:TAG`` or ``oci:DIR@sha256:…``."""

    path: Path
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        return f"{LAYOUT_SCHEME}{self.path}"

    @property
    def identifier(self) -> str | None:
        """What to ask the layout for; ``None`` means the only image in it."""
        return self.digest or self.tag

    @property
    def canonical(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return self.name + tag + (f"@{self.digest}" if self.digest else "")

    def with_digest(self, digest: str) -> LayoutReference:
        """The same layout and tag, held to ``digest``."""
        return replace(self, digest=_checked_digest(digest, digest))

    def __str__(self) -> str:
        return self.canonical


def parse_location(text: str) -> Reference | LayoutReference:
    """Read an image reference of either kind; ``oci:`` marks a layout.

    Raises:
        InvalidInput: it is neither.
    """
    if text.startswith(LAYOUT_SCHEME):
        return parse_layout_reference(text)
    return parse_reference(text)


def parse_reference(text: str) -> Reference:
    """Read ``[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`` (distribution/reference, with Docker's defaults).

    Stricter than Docker in one thing: ``Owner/name`` is refused as upper case, and not taken for a registry
    called ``Owner``.

    Raises:
        InvalidInput: with what is wrong and, where it can be told, what was meant.
    """
    if scheme := _SCHEME.match(text):
        raise _refused(text, "an image reference has no scheme", hint=f"write {text[scheme.end() :]}")
    rest, at, digest = text.partition("@")
    registry, path = _split_registry(rest)
    path, colon, tag = path.partition(":")
    if not path:
        raise _refused(
            text, "an image reference needs a repository", hint="for example lmsysorg/sglang:v0.5.20"
        )
    _check_repository(text, rest, registry, path)
    if registry == DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    if len(registry) + 1 + len(path) > LONGEST_NAME:
        raise _refused(text[:80] + "…", f"an image name is longer than {LONGEST_NAME} characters")
    return Reference(
        registry,
        path,
        tag=_checked_tag(tag, text) if colon else None,
        digest=_checked_digest(digest, text) if at else None,
    )


def parse_layout_reference(text: str) -> LayoutReference:
    """Read ``oci:DIR``, ``oci:DIR:TAG``, ``oci:DIR@DIGEST`` or both; ``DIR`` holds neither ``:`` nor ``@``.

    Raises:
        InvalidInput: with what is wrong.
    """
    if not text.startswith(LAYOUT_SCHEME):
        raise _refused(text, "a layout reference starts with oci:", hint=f"write oci:{text}")
    rest, at, digest = text.removeprefix(LAYOUT_SCHEME).partition("@")
    directory, colon, tag = rest.partition(":")
    if not directory or "\0" in directory:
        raise _refused(text, "a layout reference needs a directory", hint="for example oci:build/image")
    return LayoutReference(
        Path(directory),
        tag=_checked_tag(tag, text) if colon else None,
        digest=_checked_digest(digest, text) if at else None,
    )


def is_tag(text: str) -> bool:
    """Whether a registry would take ``text`` as a tag."""
    return _TAG.fullmatch(text) is not None


def _split_registry(text: str) -> tuple[str, str]:
    if not _names_a_registry(text):
        return DEFAULT_REGISTRY, text
    registry, _, rest = text.partition("/")
    registry = registry.lower()
    return (DEFAULT_REGISTRY if registry == "index.docker.io" else registry), rest


def _names_a_registry(text: str) -> bool:
    """Docker's rule: what stands before the first slash is a registry if it looks like a host."""
    first, slash, _ = text.partition("/")
    return bool(slash) and (first.lower() == "localhost" or any(mark in first for mark in ".:["))


def _check_repository(text: str, name: str, registry: str, path: str) -> None:
    if not _REGISTRY.fullmatch(registry):
        raise _refused(text, "this is not a registry", found=registry, expected="HOST or HOST:PORT")
    port = registry.rpartition("]")[2].partition(":")[2]
    if port and not 0 < int(port) < 65536:
        raise _refused(text, "this is not a port", found=port, expected="1 to 65535")
    if _REPOSITORY.fullmatch(path.lower()) and path != path.lower():
        lower = name.replace(path, path.lower(), 1) + text[len(name) :]
        raise _refused(text, "a repository is written in lower case", found=path, hint=f"write {lower}")
    if not _REPOSITORY.fullmatch(path):
        raise _refused(
            text,
            "this is not a repository",
            found=path,
            expected="parts of a-z and 0-9, joined inside by . _ __ or -, separated by /",
        )
    if registry == DEFAULT_REGISTRY and _HEX_ID.fullmatch(path):
        raise _refused(text, "64 hex digits alone are not a repository", hint=f"write NAME@sha256:{path}")


def _checked_tag(tag: str, text: str) -> str:
    if not is_tag(tag):
        raise _refused(
            text,
            "this is not a tag",
            found=tag,
            expected="1 to 128 of letters, digits, _ . -, not starting with . or -",
        )
    return tag


def _checked_digest(digest: str, text: str) -> str:
    if not is_digest(digest):
        hint = f"write {digest.lower()}" if is_digest(digest.lower()) else None
        raise _refused(
            text,
            "this is not a digest",
            found=digest,
            expected="sha256: and 64 lower-case hex digits",
            hint=hint,
        )
    return digest


def _refused(
    text: str, what: str, *, expected: str | None = None, found: str | None = None, hint: str | None = None
) -> InvalidInput:
    return InvalidInput(what, where=text, expected=expected, found=found, hint=hint)
