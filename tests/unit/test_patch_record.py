"""What a manifest says of one patch: a row for each kind of change."""

from __future__ import annotations

import pytest

from builder.errors import InvalidInput
from builder.patch.apply import Kind, try_series
from builder.patch.patch import Patch, parse_patch
from builder.patch.series import Series
from builder.record.manifest import patch_record
from builder.source.files import SourceFile
from tests.projects.trees import plain

BEFORE = plain("def f():\n    a = 1\n\n    b = 2\n    return a + b\n")
AFTER = plain(BEFORE.data.replace(b"b = 2", b"b = 3"))
HUNK = b"@@ -1,5 +1,5 @@\n def f():\n     a = 1\n \n-    b = 2\n+    b = 3\n     return a + b\n"
HEAD = b"From: A <a@example.org>\nSubject: =?utf-8?q?b_is_three=C3=A9?=\n\nWhy.\n\n"
HEAD += b"Bug: https://example.org/1\nUpstream-Status: Submitted [https://example.org/2]\n---\n\n"
LINES = BEFORE.data.splitlines(keepends=True)


def diff(old: str, new: str, more: bytes = b"", hunk: bytes = HUNK) -> bytes:
    names = f"diff --git a/{old} b/{new}\n".encode() + more
    if not hunk:
        return names
    minus = "/dev/null" if b"new file" in more else f"a/{old}"
    plus = "/dev/null" if b"deleted file" in more else f"b/{new}"
    return names + f"--- {minus}\n+++ {plus}\n".encode() + hunk


def patch_of(*diffs: bytes) -> Patch:
    return parse_patch("p0", HEAD + b"".join(diffs))


NEW = b"@@ -0,0 +1,5 @@\n" + b"".join(b"+" + line for line in LINES)
GONE = b"@@ -1,5 +0,0 @@\n" + b"".join(b"-" + line for line in LINES)


@pytest.mark.parametrize(
    ("kind", "text", "old_path", "path", "pre", "post"),
    [
        ("modify", diff("a.py", "a.py"), None, "a.py", BEFORE, AFTER),
        ("create", diff("b.py", "b.py", b"new file mode 100644\n", NEW), None, "b.py", None, BEFORE),
        ("delete", diff("a.py", "a.py", b"deleted file mode 100644\n", GONE), None, "a.py", BEFORE, None),
        (
            "rename",
            diff("a.py", "b.py", b"rename from a.py\nrename to b.py\n"),
            "a.py",
            "b.py",
            BEFORE,
            AFTER,
        ),
        ("copy", diff("a.py", "b.py", b"copy from a.py\ncopy to b.py\n"), "a.py", "b.py", BEFORE, AFTER),
    ],
)
def test_a_file_of_each_kind(
    kind: Kind, text: bytes, old_path: str | None, path: str, pre: SourceFile | None, post: SourceFile | None
) -> None:
    patch = patch_of(text)
    (report,) = try_series(Series("demo", (patch,)), {"a.py": BEFORE}).reports
    record = patch_record(report, "f" * 40, "defect->fixed", {"a.py": "/srv/a.py", "b.py": "/srv/b.py"},
                          {"a.py": "0640", "b.py": "0755"})  # fmt: skip
    (file,) = record.files
    assert (file.kind, file.old_path, file.path, file.image_path) == (kind, old_path, path, f"/srv/{path}")
    assert file.mode == (None if kind == "delete" else {"a.py": "0640", "b.py": "0755"}[path])
    for said, source in ((file.pre, pre), (file.post, post)):
        assert (said and (said.blob, said.sha256)) == (source and (source.blob, source.sha256))
    assert [(hunk.declared, hunk.landed) for hunk in file.hunks] == [(0 if kind == "create" else 1,) * 2]


def test_what_the_patch_says_of_itself() -> None:
    patch = patch_of(diff("a.py", "a.py"), diff("test/x.py", "test/x.py"))
    (report,) = try_series(Series("demo", (patch,)), {"a.py": BEFORE}, drop=["test/*"]).reports
    record = patch_record(report, "f" * 40, "none", {"a.py": "/a.py"}, {"a.py": "0644"})
    assert (record.name, record.sha256, record.patch_id) == ("p0", patch.sha256, "f" * 40)
    assert record.subject == "b is threeé"
    assert record.status == "Submitted [https://example.org/2]"
    assert record.bugs == ("https://example.org/1",)
    assert record.probe == "none"
    assert [(one.path, one.rule) for one in record.dropped] == [("test/x.py", "test/*")]


def test_hunks_that_moved_say_from_where_to_where() -> None:
    (report,) = try_series(
        Series("demo", (patch_of(diff("a.py", "a.py")),)), {"a.py": plain(b"import os\n\n" + BEFORE.data)}
    ).reports
    (file,) = patch_record(report, "", "none", {"a.py": "/a.py"}, {"a.py": "0644"}).files
    assert [(hunk.declared, hunk.landed) for hunk in file.hunks] == [(1, 3)]


def test_a_name_that_is_not_utf8_cannot_be_recorded() -> None:
    name = b'"\\377.py"'
    quoted = b'diff --git "a/\\377.py" "b/\\377.py"\n--- "a/\\377.py"\n+++ "b/\\377.py"\n' + HUNK
    assert name[1:-1] in quoted
    (report,) = try_series(Series("demo", (patch_of(quoted),)), {"\udcff.py": BEFORE}).reports
    with pytest.raises(InvalidInput, match="not UTF-8"):
        patch_record(report, "", "none", {}, {})
