"""Which image a launch starts: always by digest, and of the patch set that the overlay has now."""

from __future__ import annotations

from builder.errors import ImageMismatch, UsageError
from builder.oci.model import Platform
from builder.oci.reference import LayoutReference, parse_location
from builder.project.lock import Lock


def launch_image(text: str | None, name: str, lock: Lock, patchset: str, platform: Platform | None) -> str:
    """``REPOSITORY@sha256:…`` of the image to start.

    Args:
        text: what ``--image`` names; None for the one that the lock says was built last.
        name: of the overlay.
        lock: its lock.
        patchset: digest of its patch set, as it is now.
        platform: of the lock's image; need not be given where one was built.

    Raises:
        UsageError: no image was pushed, several were, or it is named by a tag or a directory.
        ImageMismatch: what was built last has another patch set.
    """
    if text is None:
        text = _built(name, lock, patchset, platform)
    location = parse_location(text)
    if isinstance(location, LayoutReference):
        raise UsageError(
            "a node cannot pull from a directory", where="--image", found=text, hint="push the image first"
        )
    if location.digest is None:
        raise UsageError(
            "a tag can move between two nodes' pulls: the image is named by digest",
            where="--image",
            expected=f"{location.name}@sha256:…",
            found=text,
        )
    return f"{location.name}@{location.digest}"


def _built(name: str, lock: Lock, patchset: str, platform: Platform | None) -> str:
    hint = f"overlay build {name} --push REF, or name the image with --image REF@sha256:…"
    built = {key: image for key, image in lock.images.items() if platform in (None, Platform.parse(key))}
    references = {key: [str(text) for text in image.get("references", ())] for key, image in built.items()}
    pushed = list(dict.fromkeys(text for texts in references.values() for text in texts))
    if not pushed:
        raise UsageError("no pushed image of this overlay is known", where=f"the lock of {name}", hint=hint)
    if len({text.rpartition("@")[2] for text in pushed}) > 1:
        raise UsageError(
            "more than one image is known: choose",
            where=f"the lock of {name}",
            found=", ".join(pushed),
            hint=hint,
        )
    other = {image.get("patchset") for image in built.values()} - {patchset}
    if other:
        raise ImageMismatch(
            "the image that was built last has another patch set than the overlay now",
            where=pushed[0],
            expected=patchset,
            found=", ".join(map(str, other)),
            hint=hint,
        )
    return pushed[0]
