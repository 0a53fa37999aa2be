"""Where a build goes: registries, layouts and a Docker Engine, with attestations beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.bake import Plan
from builder.base import ByteProgress
from builder.build import Built, Patched, default_tag, store_images
from builder.errors import UsageError
from builder.image.reference import LayoutReference, Reference

if TYPE_CHECKING:
    from builder.attest.documents import Document
    from builder.attest.signature import SigningKey
    from builder.engine.bake import EngineImage
    from builder.engine.connection import Engine
    from builder.image.registry import Network

Say = Callable[[str], None]


@dataclass(frozen=True)
class Delivery:
    """Where a build is to go.

    Args:
        targets: repositories and layouts.
        complete: whether a layout gets the base's layers too.
        load: whether a Docker Engine gets the image.
        tag_template: the tag of targets without one.
        attach: whether attestations are attached to what is pushed.
        attest: a directory for attestations as files.
        key: signs them.
    """

    targets: tuple[Reference | LayoutReference, ...]
    complete: bool
    load: bool
    tag_template: str
    attach: bool
    attest: Path | None
    key: SigningKey | None


@dataclass(frozen=True)
class Delivered:
    """Where a build went.

    Args:
        digest: of the index or image; the engine's id of an image that was not pushed.
        references: by name, tag and digest.
        loaded: its name in the Docker Engine.
        documents: the attestations that were written as files.
    """

    digest: str
    references: tuple[str, ...] = ()
    loaded: str | None = None
    documents: tuple[Path, ...] = ()

    @property
    def shared(self) -> tuple[str, ...]:
        """The references that mean the same on every machine."""
        return tuple(text for text in self.references if not text.startswith("oci:"))


def check_engine_delivery(delivery: Delivery) -> None:
    """Refuse what a Docker Engine cannot deliver, before it bakes anything.

    Raises:
        UsageError: a layout, or attestations of an image that is not pushed.
    """
    for target in delivery.targets:
        if isinstance(target, LayoutReference):
            raise UsageError("a Docker Engine writes no layouts: bake with --engine oci", found=str(target))
    if delivery.attest and not delivery.targets:
        raise UsageError("an image has a digest to attest once it is pushed", hint="add --push REF")


def deliver(
    built: Built, delivery: Delivery, patched: Patched, network: Network, *, say: Say, progress: ByteProgress
) -> Delivered:
    """Bring what the embedded engine baked to where it is to go.

    Raises:
        UsageError: an engine is to get an index of several platforms.
        Unavailable: a registry, a disk or the engine failed.
    """
    from builder.image.layout import Layout, SparseLayout
    from builder.image.location import open_sink

    if delivery.load and len(built.images) != 1:
        raise UsageError("a Docker Engine takes one image: choose with --platform")
    tag = default_tag(delivery.tag_template, patched)
    documents = [
        (baked.image.descriptor, _documents(baked.plan, baked.image.manifest.digest, patched, delivery))
        for baked in (built.images if delivery.attest or _attaches(delivery) else ())
    ]
    references = []
    for target in delivery.targets:
        sink = open_sink(target, network, layout=Layout if delivery.complete else SparseLayout)
        say(f"writing to {sink.name}")
        store_images(built, sink, tag=target.tag or tag, progress=progress)
        references.append(f"{target.name}:{target.tag or tag}@{built.digest}")
        if isinstance(target, Reference) and delivery.attach:
            from builder.attest.attach import attach_documents

            say(f"attaching attestations to {sink.name}")
            for image, made in documents:
                attach_documents(network.repository(target), image, made)
    loaded = _load(built, patched, tag, progress) if delivery.load else None
    written = _write(delivery.attest, [(str(image.platform), made) for image, made in documents])
    return Delivered(built.digest, tuple(references), loaded, written)


def deliver_from_engine(
    engine: Engine,
    images: Sequence[EngineImage],
    delivery: Delivery,
    patched: Patched,
    network: Network,
    *,
    say: Say,
) -> Delivered:
    """Name what a Docker Engine baked, and push it from there.

    Raises:
        UsageError: see :func:`check_engine_delivery`.
        Unavailable: a registry or the engine failed.
    """
    from builder.engine.bake import push_image, tag_image

    check_engine_delivery(delivery)
    (image,) = images
    tag = default_tag(delivery.tag_template, patched)
    name = engine_name(patched)
    tag_image(engine, image.id, name, tag)
    references, digest = [], image.id
    made: tuple[Document, ...] = ()
    for target in delivery.targets:
        assert isinstance(target, Reference)  # noqa: S101 (just checked)
        named = target if target.tag else target.with_tag(tag)
        digest = push_image(engine, image, named, say)
        references.append(f"{named.name}:{named.tag}@{digest}")
        made = _documents(image.plan, digest, patched, delivery)
        if delivery.attach:
            from builder.attest.attach import attach_documents

            repository = network.repository(target)
            attach_documents(repository, repository.get_manifest(digest).descriptor, made)
    written = _write(delivery.attest, [(str(image.plan.base.platform), made)])
    return Delivered(digest, tuple(references), f"{name}:{tag}", written)


def engine_name(patched: Patched) -> str:
    """What an overlay's images are called in a Docker Engine: as the base's repository, without its owner."""
    return patched.spec.base.image.rpartition("/")[2].partition(":")[0]


def _attaches(delivery: Delivery) -> bool:
    return delivery.attach and any(isinstance(target, Reference) for target in delivery.targets)


def _documents(plan: Plan, digest: str, patched: Patched, delivery: Delivery) -> tuple[Document, ...]:
    from builder.attest.documents import make_documents

    patches = {patch.name: patch.data for patch in patched.applied.series.patches}
    return make_documents(plan.manifest, digest, created=plan.created, patches=patches, key=delivery.key)


def _load(built: Built, patched: Patched, tag: str, progress: ByteProgress) -> str:
    from builder.engine.connection import connect
    from builder.engine.load import load_image

    name = f"{engine_name(patched)}:{tag}"
    with connect() as engine:
        load_image(engine, built.images[0], name, progress=progress)
    return name


def _write(directory: Path | None, documents: Sequence[tuple[str, tuple[Document, ...]]]) -> tuple[Path, ...]:
    """Into the directory itself for one platform, else into one below it for each."""
    from builder.attest.documents import write_documents

    if directory is None:
        return ()
    written: list[Path] = []
    for platform, made in documents:
        below = directory / platform.replace("/", "-") if len(documents) > 1 else directory
        written += write_documents(made, below)
    return tuple(written)
