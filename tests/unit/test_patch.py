"""A patch file is read as bytes: its mail, its trailers, its diff."""

from __future__ import annotations

import hashlib

import pytest

from builder.errors import InvalidInput
from builder.patch.patch import check_patch_name, parse_patch, read_status

DIFF = (
    b"diff --git a/demo.py b/demo.py\n"
    b"index e3c24a1b2f9d9f7e5d2d2fa6f4f2c1f8f4bb0f0a..1111111111111111111111111111111111111111 100644\n"
    b"--- a/demo.py\n+++ b/demo.py\n@@ -2,4 +2,4 @@\n"
    b"     a = 1\n \n-    b = 2\n+    b = 3\n     return a + b\n"
)


def mail(body: str, subject: str = "demo: three", author: str = "A <a@example.org>") -> bytes:
    head = (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        f"From: {author}\nDate: Sun, 29 Nov 2026 00:00:00 +0000\nSubject: {subject}\n\n"
    )
    return (head + body + "\n---\n demo.py | 2 +-\n\n").encode() + DIFF


def test_mail_is_read_into_its_parts() -> None:
    data = mail(
        "Two was too few.\n\nMore of why.\n\nUpstream-Status: Submitted [https://example.org/1]\n"
        "Bug: https://example.org/2\nBug: https://example.org/3\n"
        "Overlay-Depends: one two\nOverlay-Hardware: 12.0 12.1"
    )
    patch = parse_patch("p0", data)
    assert (patch.author, patch.subject) == ("A <a@example.org>", "demo: three")
    assert patch.message == "Two was too few.\n\nMore of why."
    assert (patch.status.word, patch.status.reason) == ("Submitted", "https://example.org/1")
    assert patch.bugs == ("https://example.org/2", "https://example.org/3")
    assert patch.depends == ("one", "two")
    assert patch.hardware == ("12.0", "12.1")
    assert patch.sha256 == hashlib.sha256(data).hexdigest()
    assert patch.diff == DIFF


def test_diff_lines_in_the_message_are_no_file_of_the_patch() -> None:
    text = "As\n\n--- a/n.py\n+++ b/n.py\n\nand\n\ndiff --git a/n.py b/n.py\n\nUpstream-Status: Pending"
    assert [diff.path for diff in parse_patch("p0", mail(text)).files] == ["demo.py"]


def test_blob_ids_of_the_index_line_may_be_invented() -> None:
    (diff,) = parse_patch("p0", mail("Upstream-Status: Pending")).files
    assert diff.new_blob == "1" * 40


def test_non_ascii_author_and_text_are_read_as_utf8_whatever_the_locale() -> None:
    patch = parse_patch("p0", mail("Für Größe.\n\nUpstream-Status: Pending", author="Jürgen <j@example.org>"))
    assert patch.author == "Jürgen <j@example.org>"
    assert patch.message == "Für Größe."


def test_encoded_words_of_a_header_are_decoded() -> None:
    patch = parse_patch(
        "p0", mail("Upstream-Status: Pending", author="=?UTF-8?q?J=C3=BCrgen?= <j@example.org>")
    )
    assert patch.author == "Jürgen <j@example.org>"


def test_bytes_that_are_no_utf8_survive_in_the_text() -> None:
    data = mail("Upstream-Status: Pending").replace(b"Upstream", b"Caf\xe9.\n\nUpstream", 1)
    assert parse_patch("p0", data).message.encode("utf-8", "surrogateescape") == b"Caf\xe9."


def test_folded_subject_is_one_line() -> None:
    assert parse_patch("p0", mail("Upstream-Status: Pending", subject="one\n two")).subject == "one two"


def test_missing_status_is_refused_with_a_line_to_add() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_patch("p0", mail("Nothing to say."))
    assert caught.value.where == "p0.patch"
    assert "Upstream-Status: Pending" in str(caught.value.expected)


def test_status_outside_the_vocabulary_names_the_nearest_word() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_status("Backported", where="p0")
    assert "Backport" in str(caught.value.hint)


def test_text_without_a_diff_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no diff"):
        parse_patch("p0", b"From: A <a@example.org>\nSubject: x\n\nUpstream-Status: Pending\n---\n")


@pytest.mark.parametrize("name", ["", "-x", "../x", "a/b", "A", "a..b", "x" * 101, "a b", ".x", "a\n"])
def test_names_that_could_leave_the_series_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_patch_name(name, where="series, line 1")
