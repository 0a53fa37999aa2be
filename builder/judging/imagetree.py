"""The source inside an image as a target: read from its layers, nothing of it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from builder.errors import ImageMismatch
from builder.gitstore import GitStore, TreeEntry
from builder.image.location import identifier_of, open_source
from builder.image.model import ByteProgress
from builder.image.reference import parse_location
from builder.image.registry import Network
from builder.image.rootfs import Files, Found
from builder.judging.target import Target
from builder.source import SourceFile
from builder.trust.subject import LayeredImage, open_images
from builder.upstream import Mount, Upstream

MAX_FILES = 50_000
MAX_FILE_BYTES = 8 << 20


def image_target(text: str, cache: Path, progress: ByteProgress, warn: Callable[[str], None]) -> Target:
    """The source that an image's Python imports, as a commit in the cache.

    Of an index, the first platform's image is read: Python sources are the same for all.

    Args:
        text: a reference, or ``oci:DIR``.
        cache: the cache's directory.
        progress: makes a byte counter for a layer that is read.
        warn: told what a person should know although the work goes on.

    Raises:
        ImageMismatch: the image has no SGLang, or it is not what its digests say.
        Unavailable: the registry fails.
    """
    location = parse_location(text)
    store = GitStore.create(cache / "images.git")
    with Network(warn=warn) as network:
        image = open_images(location, open_source(location, network), identifier_of(location))[0]
        reference = f"refs/images/{image.manifest.digest.partition(':')[2]}"
        commit = store.resolve(reference)
        if commit is None:
            commit = _imported(store, LayeredImage(image, cache, progress))
            store.git("update-ref", reference, commit)
    return Target(text, Upstream(text, "image", (Mount("", store, commit),)))


def _imported(store: GitStore, image: LayeredImage) -> str:
    files = _sources(image)
    blobs = store.write_blobs([file.data for file in files.values()])
    with store.index() as index:
        index.put(
            {path: TreeEntry(file.mode, oid) for (path, file), oid in zip(files.items(), blobs, strict=True)}
        )
        tree = index.write_tree()
    when = {f"GIT_{who}_{key}": value for who in ("AUTHOR", "COMMITTER") for key, value in _WHO.items()}
    return store.git("commit-tree", tree, stdin=b"source of an image\n", env=when).decode().strip()


_WHO = {"NAME": "overlay", "EMAIL": "overlay@localhost", "DATE": "@0 +0000"}


def _sources(image: LayeredImage) -> dict[str, SourceFile]:
    """The package's files at ``python/sglang``, and the project file beside it, which has the pins."""
    root = image.imported_from("sglang")
    if root is None:
        raise ImageMismatch("the image's Python finds no package sglang", where=image.name)
    above = root.rpartition("/")[0]
    seen = image.open_files([above])
    found = {f"python/sglang/{path}": place for path, place in _walk(seen, root)}
    project = seen.lookup(f"{above}/pyproject.toml")
    if project is not None and project.is_file:
        found["python/pyproject.toml"] = project
    if len(found) > MAX_FILES:
        raise ImageMismatch(
            "the package has too many files", where=image.name, expected=f"at most {MAX_FILES}"
        )
    data = image.read(found.values())
    return {
        path: SourceFile("100755" if place.mode & 0o111 else "100644", data[place.path])
        for path, place in found.items()
        if place.path in data
    }


def _walk(files: Files, root: str, below: str = "") -> Iterator[tuple[str, Found]]:
    for name in files.listdir(f"{root}/{below}".rstrip("/")):
        path = f"{below}{name}"
        place = files.lookup(f"{root}/{path}")
        if place is None or name == "__pycache__":
            continue
        if place.is_directory:
            yield from _walk(files, root, f"{path}/")
        elif place.is_file and place.size <= MAX_FILE_BYTES and not name.endswith((".so", ".pyc")):
            yield path, place
