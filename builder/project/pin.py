"""Pins: a tag resolved, once, to the digests of its index and of each platform's image; kept in the lock.

A tag may be pushed again, an architecture's digest may be taken for the index's: both are told apart here by
what the registry stores under a name, never by what the name looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from builder.errors import ImageMismatch, InvalidInput
from builder.oci.append import base_config, platform_of
from builder.oci.index import index_images
from builder.oci.model import Descriptor, ImageSource, Platform, RawManifest, is_digest
from builder.oci.reference import LayoutReference, Reference, parse_location
from builder.project.lock import Lock
from builder.project.spec import BaseSpec, Spec


@dataclass(frozen=True)
class PinnedImage:
    """One platform's image: digest of its manifest and of its config."""

    digest: str
    config: str


@dataclass(frozen=True)
class Pin:
    """What a reference stood for when it was pinned.

    Args:
        reference: as it was named, without a digest where a tag was given; the key in the lock.
        digest: what the reference led to.
        media_type: of that: an index or a single image.
        images: by platform.
    """

    reference: str
    digest: str
    media_type: str
    images: Mapping[Platform, PinnedImage]

    @property
    def is_index(self) -> bool:
        return len(self.images) != 1 or next(iter(self.images.values())).digest != self.digest

    def as_json(self) -> dict[str, Any]:
        """For the lock's ``pins``, under :attr:`reference`."""
        return {
            "digest": self.digest,
            "media_type": self.media_type,
            "platforms": {
                str(platform): {"config": image.config, "digest": image.digest}
                for platform, image in self.images.items()
            },
        }

    @classmethod
    def from_json(cls, reference: str, value: Mapping[str, Any]) -> Pin:
        """From the lock.

        Raises:
            InvalidInput: the entry is not one that :meth:`as_json` writes.
        """
        match value:
            case {"digest": str(digest), "media_type": str(media_type), "platforms": {**platforms}}:
                images = {}
                for platform, image in platforms.items():
                    match image:
                        case {"digest": str(child), "config": str(config)} if is_digest(child):
                            images[Platform.parse(str(platform))] = PinnedImage(child, config)
                        case _:
                            raise _damaged(reference)
                if is_digest(digest):
                    return cls(reference, digest, media_type, images)
        raise _damaged(reference)


@dataclass(frozen=True)
class Moved:
    """One thing about a pin that is not so any more; ``found`` is None where nothing is there."""

    reference: str
    what: str
    expected: str
    found: str | None
    hint: str | None = None


Opener = Callable[[Reference | LayoutReference], ImageSource]


def resolve_pin(location: Reference | LayoutReference, source: ImageSource) -> Pin:
    """Follow a tag or digest to its platforms.

    Args:
        location: with a tag or a digest; a digest beside a tag must be what the tag leads to.
        source: the place it names.

    Raises:
        ImageMismatch: there is no such tag (with the nearest ones) or digest, or the two disagree.
        Unavailable: the registry did not answer.
    """
    identifier = location.tag or location.identifier
    if identifier is None:
        raise InvalidInput("name a tag or a digest of the layout", where=str(location))
    manifest = source.get_manifest(identifier)
    if location.digest and manifest.digest != location.digest:
        raise ImageMismatch(
            "the tag does not lead to the digest that stands beside it",
            where=location.name,
            expected=location.digest,
            found=f"{location.tag} is {manifest.digest}",
            hint="one of the two is outdated: leave out the one you do not mean",
        )
    return Pin(_key(location), manifest.digest, manifest.media_type, dict(_images(manifest, source)))


def no_base(spec: Spec) -> InvalidInput:
    """The error for a spec that pins no base, with the command that pins its release's own image."""
    return InvalidInput("spec pins no base", where="base.index", hint=f"pin one: {pin_command(spec)}")


def pin_command(spec: Spec) -> str:
    """The command that looks up the image of the spec's repository that is tagged with its release."""
    repository = parse_location(spec.base.image).name
    return f"overlay pin {spec.name} --base {repository}:{spec.upstream.release}"


def spec_location(spec: Spec) -> Reference | LayoutReference:
    """The base that a spec pins: its index, else the first platform that has a digest.

    Raises:
        InvalidInput: the spec pins nothing.
    """
    base = spec.base
    digest = base.index or next((digest for digest in base.platforms.values() if digest), None)
    if digest is None:
        raise no_base(spec)
    return replace(parse_location(base.image), tag=None, digest=digest)


def check_spec(spec: BaseSpec, pin: Pin) -> None:
    """What the spec says of the digests that were found must be so.

    Raises:
        ImageMismatch: a platform's digest stands for the index, the index's for a platform, or a platform's
            image is another one.
    """
    children = {image.digest: platform for platform, image in pin.images.items()}
    if spec.index in children and spec.index == pin.digest and not pin.is_index:
        raise ImageMismatch(
            "the spec pins one platform's image as if it were the index",
            where="base.index",
            expected="the digest of an image index",
            found=f"{spec.index} is the image for {children[spec.index or '']}",
            hint=f"move it to base.platforms, under {children[spec.index or '']}",
        )
    for name, digest in spec.platforms.items():
        if digest == pin.digest and pin.is_index:
            raise ImageMismatch(
                "the spec pins the index as if it were one platform's image",
                where=f"base.platforms: {name}",
                expected=_platform_digest(pin, name),
                found=f"{digest} is an index of {', '.join(map(str, pin.images))}",
                hint="move it to base.index",
            )
        if spec.index == pin.digest and digest and digest != _platform_digest(pin, name):
            raise ImageMismatch(
                "the spec's digest for a platform is not what its index has",
                where=f"base.platforms: {name}",
                expected=_platform_digest(pin, name),
                found=digest,
            )


def check_pins(pins: Mapping[str, Mapping[str, Any]], opened: Opener) -> list[Moved]:
    """Which pins are not so any more. Nothing is changed.

    Args:
        pins: of a lock.
        opened: gives the place that a reference names.

    Raises:
        InvalidInput: a pin of the lock is damaged.
        Unavailable: a registry did not answer.
    """
    return [
        moved
        for reference, value in sorted(pins.items())
        for moved in _moved(Pin.from_json(reference, value), opened)
    ]


def pinned(text: str | None, spec: BaseSpec, lock: Lock) -> str | None:
    """``--base`` with the digest that the lock pins for it; as it is where it has one or no pin is there.

    A spec that pins no base takes the lock's only pin of its image.
    """
    if text is None:
        if spec.index or any(spec.platforms.values()):
            return None
        name = parse_location(spec.image).name
        of_image = [pin for key, pin in lock.pins.items() if parse_location(key).name == name]
        return str(of_image[0]["digest"]) if len(of_image) == 1 else None
    if is_digest(text):
        return text
    location = parse_location(text)
    pin = lock.pins.get(_key(location)) if location.digest is None else None
    return text if pin is None else str(location.with_digest(str(pin.get("digest"))))


def _key(location: Reference | LayoutReference) -> str:
    return str(location) if location.tag is None else str(replace(location, digest=None))


def _images(manifest: RawManifest, source: ImageSource) -> Iterator[tuple[Platform, PinnedImage]]:
    if not manifest.is_index:
        descriptor = base_config(manifest)
        config = source.read_blob(descriptor)
        yield platform_of(config).canonical, PinnedImage(manifest.digest, descriptor.digest)
        return
    for child in sorted(index_images(manifest, source), key=_by_platform):
        image = source.get_manifest(child.digest)
        if child.platform is not None:
            yield child.platform, PinnedImage(child.digest, base_config(image).digest)


def _by_platform(child: Descriptor) -> str:
    return str(child.platform)


def _platform_digest(pin: Pin, name: str) -> str:
    image = pin.images.get(Platform.parse(name))
    return image.digest if image else f"one of {', '.join(map(str, pin.images))}"


def _moved(pin: Pin, opened: Opener) -> Iterator[Moved]:
    location = parse_location(pin.reference)
    source = opened(location)
    pinned = {image.digest: f"the image for {platform}" for platform, image in pin.images.items()}
    pinned[pin.digest] = "the pinned digest"  # which may be the only image's
    gone = [digest for digest in pinned if _digest_of(source, digest)[0] is None]
    if location.tag is not None:
        found, hint = _digest_of(source, location.tag)
        if found != pin.digest:
            what = "the tag is gone" if found is None else "the tag was pushed again"
            what += "" if gone else "; the pinned digest still answers"
            yield Moved(pin.reference, what, pin.digest, found, hint)
    for digest in gone:
        yield Moved(pin.reference, f"{pinned[digest]} is gone", digest, None, "mirror images that you pin")


def _digest_of(source: ImageSource, identifier: str) -> tuple[str | None, str | None]:
    """The digest that a tag or digest leads to; None, and what to do, where there is none.

    A registry is asked by ``HEAD``: no download, and no pull that Docker Hub counts.
    """
    from builder.oci.registry.client import Repository

    if isinstance(source, Repository) and (found := source.head_manifest(identifier)):
        return found.digest, None
    try:
        return source.get_manifest(identifier).digest, None
    except ImageMismatch as error:
        if error.found is not None:
            raise  # it is there, and broken
        return None, error.hint


def _damaged(reference: str) -> InvalidInput:
    return InvalidInput(
        "a pin of the lock is damaged",
        where=reference,
        hint=f"take its entry out of the lock, and pin {reference.partition('@')[0]} again (overlay pin)",
    )
