"""What vouches for an image from outside: the patches of a checkout, applied to the base's own files.

A forger can rewrite a file, its record, the labels and the annotations so that they agree. Patches with the
SHA-256 that the manifest names give other files than the forged ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from builder.errors import InvalidInput
from builder.patch.apply import AppliedSeries, try_series
from builder.patch.diff import MAX_DIFF_BYTES
from builder.patch.patch import Patch, parse_patch
from builder.patch.series import Series
from builder.record.manifest import BlobRecord, Manifest, PatchRecord, as_text
from builder.source.files import SourceFile
from builder.source.git import TreeEntry, tree_id
from builder.verify.deviation import Deviation
from builder.verify.layered import BaseFiles
from builder.verify.read_record import image_path_of

NOBODY = "nothing outside this image vouches for it: --against LOCK or --key"
_MODES = ("100644", "100755")


def find_patches(directory: Path, manifest: Manifest) -> Series | None:
    """The patches that a manifest names by SHA-256, in its order; None where the checkout lacks one.

    Args:
        directory: the root's ``patches``, with a directory for each series.
        manifest: of the image.
    """
    wanted = {patch.sha256 for patch in manifest.patches}
    there: dict[str, bytes] = {}
    for path in sorted(directory.glob("*/*.patch")):
        if path.is_file() and path.stat().st_size <= MAX_DIFF_BYTES:
            data = path.read_bytes()
            if (sha256 := hashlib.sha256(data).hexdigest()) in wanted:
                there[sha256] = data
    if not wanted or there.keys() != wanted:
        return None
    try:
        patches = [parse_patch(patch.name, there[patch.sha256]) for patch in manifest.patches]
    except InvalidInput:
        return None
    return Series(manifest.overlay.name, tuple(patches))


def check_series(
    manifest: Manifest,
    series: Series,
    base: BaseFiles,
    known: Callable[[Collection[str]], Mapping[str, bytes]],
) -> Iterator[Deviation]:
    """Apply a checkout's patches to the base's own pre-images, and hold the manifest against the result.

    Args:
        manifest: of the image.
        series: its patches, found outside of it.
        base: the files of the image's base.
        known: gives the bytes of blobs that need not be read out of the base again, by git's id.
    """
    drop = sorted({dropped.rule for patch in manifest.patches for dropped in patch.dropped})
    applied = try_series(series, _pre_images(manifest, series, base, known), drop=drop)
    if applied.failed:
        report = applied.failed[0]
        where, problem = f"patches: {report.patch.name}", report.problems[0]
        yield Deviation(
            "manifest", where, "does not apply to the base", None, f"{problem.path}: {problem.what}"
        )
        return
    for patch, record in zip(series.patches, manifest.patches, strict=True):
        yield from _check_words(patch, record)
    yield from _check_final(manifest, applied)


def _pre_images(
    manifest: Manifest,
    series: Series,
    base: BaseFiles,
    known: Callable[[Collection[str]], Mapping[str, bytes]],
) -> dict[str, SourceFile]:
    found = {path: base.files.lookup(image_path_of(manifest, path)) for path in series.paths}
    there = {path: one for path, one in found.items() if one is not None and one.is_file and one.blob}
    blobs = known({one.blob for one in there.values() if one.blob})
    data = {one.path: blobs[one.blob] for one in there.values() if one.blob and one.blob in blobs}
    data |= base.read(one for one in there.values() if one.path not in data)
    return {
        path: SourceFile(_MODES[bool(one.mode & 0o100)], data[one.path])
        for path, one in there.items()
        if one.path in data
    }


def _check_words(patch: Patch, record: PatchRecord) -> Iterator[Deviation]:
    said = {"subject": record.subject, "status": record.status, "bugs": " ".join(record.bugs)}
    true = {"subject": as_text(patch.subject), "status": str(patch.status), "bugs": " ".join(patch.bugs)}
    for key, expected in true.items():
        if said[key] != expected:
            where = f"patches: {record.name}: {key}"
            yield Deviation("manifest", where, "not what the patch itself says", expected, said[key])


def _check_final(manifest: Manifest, applied: AppliedSeries) -> Iterator[Deviation]:
    recorded: dict[str, BlobRecord | None] = {}
    for patch in manifest.patches:
        for file in patch.files:
            if file.kind == "rename" and file.old_path is not None:
                recorded[file.old_path] = None
            recorded[file.path] = file.post
    made = {path: after for path, after in applied.after.items() if after != applied.before[path]}
    for path in sorted(recorded.keys() | made.keys()):
        said = record.sha256 if (record := recorded.get(path)) else "no file"
        after = applied.after.get(path)
        expected = after.sha256 if after else "no file"
        if said != expected:
            what = "the patches with these SHA-256, applied to the base's own file, make another"
            yield Deviation(
                "file", image_path_of(manifest, path), what, f"sha256:{expected}", f"sha256:{said}"
            )


# --- the manifest's own sums ------------------------------------------------------------------------------


def check_trees(manifest: Manifest) -> Iterator[Deviation]:
    """The trees of the touched files, recomputed from what the manifest records of each file.

    The manifest has the image's permission bits and not git's modes, so those that give the tree before the
    series are taken: all plain, by the executable bits, or all executable.
    """
    before, after = _touched(manifest)
    last = {file.path: file for patch in manifest.patches for file in patch.files}
    bits = {path: _MODES[bool(int(file.mode or "0644", 8) & 0o100)] for path, file in last.items()}
    created = {path: mode for path, mode in bits.items() if before.get(path) is None}
    for modes in ({}, bits, dict.fromkeys([*before, *after], _MODES[1])):
        if _tree(before, modes) == manifest.upstream.tree:
            found = (_tree(after, {**modes, **created}), _tree(after, bits))
            if manifest.patched_tree not in found:
                what = "not the tree of the files that the manifest names"
                yield Deviation("manifest", "patched_tree", what, found[0], manifest.patched_tree)
            return
    what = "not the tree of the pre-images that the manifest names"
    yield Deviation("manifest", "upstream.tree", what, _tree(before, bits), manifest.upstream.tree)


def _touched(manifest: Manifest) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """Every touched file's blob before and after the series, by upstream path; None where there is none."""
    before: dict[str, str | None] = {}
    after: dict[str, str | None] = {}
    for file in (file for patch in manifest.patches for file in patch.files):
        source = file.old_path or file.path
        for path, pre in ((source, file.pre), (file.path, None)):
            if path not in before:
                before[path] = after[path] = pre.blob if pre else None
        if file.kind == "rename":
            after[source] = None
        after[file.path] = file.post.blob if file.post else None
    return before, after


def _tree(blobs: Mapping[str, str | None], modes: Mapping[str, str]) -> str:
    """The id of the git tree of exactly these files."""
    return tree_id(
        {
            path: TreeEntry(modes.get(path, _MODES[0]), blob)
            for path, blob in blobs.items()
            if blob is not None
        }
    )
