"""The one way in which patches are written: the same bytes for the same change, on any machine.

The diff between the files before and after is git's, made in a repository of our own that holds nothing
else, with every setting named: neither the user's configuration and attributes, nor the upstream's
``.gitattributes``, nor the locale have a say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.errors import InvalidInput
from builder.patch.apply import quoted_path
from builder.patch.message import Head, write_head
from builder.source.files import SourceFile
from builder.source.git import GitStore
from builder.temporary import temporary_directory

Files = Mapping[str, SourceFile]

DIFF_OPTIONS = (
    "-r", "--patch-with-stat", "--stat=72", "--summary", "--full-index", "--find-renames=50%", "-l1000",
    "--diff-algorithm=myers", "--indent-heuristic", "--unified=3", "--inter-hunk-context=0",
    "--src-prefix=a/", "--dst-prefix=b/", "--no-color", "--no-ext-diff", "--no-textconv", "--no-relative",
    "--submodule=short", "--ws-error-highlight=none", "--no-function-context", "-O/dev/null",
)  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """A patch that is to be written.

    Args:
        name: its name in the series.
        head: what it says of itself.
        before, after: the files it changes, and only these; a file that is not there is left out.
    """

    name: str
    head: Head
    before: Files
    after: Files


def write_patches(drafts: Sequence[Draft]) -> list[bytes]:
    """Canonical bytes of patches, in order.

    Raises:
        InvalidInput: one changes nothing, or changes a binary file.
    """
    diffs = diff_all([(draft.before, draft.after) for draft in drafts])
    return [_joined(draft, diff) for draft, diff in zip(drafts, diffs, strict=True)]


def diff_all(pairs: Sequence[tuple[Files, Files]]) -> list[bytes]:
    """Diffstat, a blank line and diff for each pair of trees; empty where they are equal.

    All pairs go through two git processes, whatever their number.
    """
    if not pairs:
        return []
    with temporary_directory("render") as directory:
        store = GitStore.create(Path(directory) / "render.git")
        commits = _import_pairs(store, pairs, Path(directory) / "marks")
        out = store.git(
            "diff-tree", "--stdin", *DIFF_OPTIONS, stdin="".join(f"{commit}\n" for commit in commits).encode()
        )
    return _split(out, commits)


def _import_pairs(store: GitStore, pairs: Sequence[tuple[Files, Files]], marks: Path) -> list[str]:
    """Write every pair as a commit and its child; the children's ids, in order."""
    stream: list[bytes] = []
    for number, (before, after) in enumerate(pairs, 1):
        for parent, mark, files in ((None, 2 * number, before), (2 * number, 2 * number + 1, after)):
            stream.append(b"commit refs/heads/pair\nmark :%d\ncommitter x <x> 0 +0000\ndata 0\n" % mark)
            stream.append(b"from :%d\ndeleteall\n" % parent if parent else b"")
            for path, file in sorted(files.items()):
                name = quoted_path(path.encode("utf-8", "surrogateescape"))
                stream.append(b"M %s inline %s\n" % (file.mode.encode(), name))
                stream.append(b"data %d\n%s\n" % (len(file.data), file.data))
        stream.append(b"reset refs/heads/pair\n\n")
    store.git(
        "fast-import", "--quiet", "--force", "--date-format=raw", f"--export-marks={marks}",
        stdin=b"".join(stream),
    )  # fmt: skip
    ids = dict(line.split() for line in marks.read_text().splitlines())
    return [ids[f":{2 * number + 1}"] for number in range(1, len(pairs) + 1)]


def _split(out: bytes, commits: Sequence[str]) -> list[bytes]:
    """What git said of each commit: it begins with the commit's id on a line of its own."""
    parts: list[bytes] = []
    position = 0
    for number, commit in enumerate(commits):
        head = commit.encode() + b"\n"
        if not out.startswith(head, position):
            parts.append(b"")  # nothing differs, and git passes over it in silence
            continue
        position += len(head)
        following = (other.encode() + b"\n" for other in commits[number + 1 :])
        ends = (out.find(b"\n" + other, position - 1) for other in following)
        end = next((found + 1 for found in ends if found >= 0), len(out))
        parts.append(out[position:end])
        position = end
    return parts


def _joined(draft: Draft, diff: bytes) -> bytes:
    where = f"{draft.name}.patch"
    if not diff:
        raise InvalidInput(
            "patch changes nothing",
            where=where,
            hint="edit the files and amend its commit, or drop it from the series",
        )
    if binary := re.search(rb"^Binary files (.*) differ$", diff, re.MULTILINE):
        raise InvalidInput(
            "patch changes a binary file",
            where=where,
            found=binary[1].decode(errors="replace"),
            hint="binary files cannot be reviewed as text: leave the file out",
        )
    return write_head(draft.head) + b"---\n" + diff
