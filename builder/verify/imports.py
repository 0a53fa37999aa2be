"""Which copy of a package is imported, decided as for a build (:mod:`builder.base.python_path`)."""

from __future__ import annotations

from collections.abc import Iterator

from builder.base.python_path import Roots, find_roots
from builder.errors import ImageMismatch
from builder.oci.rootfs import RootFS
from builder.oci.settings import Settings
from builder.record.manifest import Manifest, RootRecord
from builder.verify.deviation import Deviation
from builder.verify.layered import Subject


def check_imports(
    subject: Subject, manifest: Manifest, files: RootFS, base: RootFS | None, expected: Settings | None
) -> Iterator[Deviation | str]:
    """Deviations, and notes of what cannot be decided on paper.

    Args:
        subject: an image or container.
        manifest: the one in it.
        files: all that decides where Python imports from (see :meth:`Subject.whole`).
        base: the base's alone, and
        expected: what containers of the image should be started with: for what is not found there either.
    """
    for root in manifest.roots:
        try:
            found = _roots(subject, root, files, subject.settings)
        except ImageMismatch as error:
            yield _not_found(root, error, _was_found(subject, root, base, expected))
            continue
        if found.root.path != root.image_path:
            yield _shadow(root, f"{found.root.path} ({found.root.reason})")
        else:
            yield from (_shadow(root, str(rival)) for rival in found.rivals)
        yield from map(str, found.code)


def _roots(subject: Subject, root: RootRecord, files: RootFS, settings: Settings) -> Roots:
    return find_roots(
        files,
        settings.environment,
        root.path.rpartition("/")[2],
        working_dir=settings.start_directory,
        user=settings.user,
        command=settings.started,
        read=subject.read_one,
    )


def _was_found(subject: Subject, root: RootRecord, base: RootFS | None, expected: Settings | None) -> bool:
    """Whether Python finds the package in the base; else the spec alone says where it is."""
    if base is None or expected is None:
        return root.distribution is not None
    try:
        _roots(subject, root, base, expected)
    except ImageMismatch:
        return False
    return True


def _not_found(root: RootRecord, error: ImageMismatch, was_found: bool) -> Deviation | str:
    instead = error.facts.get("instead")
    if isinstance(instead, list):
        return _shadow(root, ", ".join(map(str, instead)))
    if was_found:
        return _shadow(root, f"nowhere: {error.what}")
    return f"{error.what}: {root.path} is taken to be at {root.image_path}, as the spec said"


def _shadow(root: RootRecord, found: str) -> Deviation:
    package = root.path.rpartition("/")[2]
    what = f"Python imports {package} from another place than the patched one"
    return Deviation("shadow", root.image_path, what, root.image_path, found)
