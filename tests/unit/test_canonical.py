"""What we write is what ``git format-patch`` writes with nobody's settings, whatever the settings are."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.errors import InvalidInput
from builder.patch.canonical import Draft, Files, diff_all, write_patches
from builder.patch.message import Head, commit_message, raw_date, read_commit, read_head, write_head
from builder.source.files import SourceFile
from tests.examples import examples
from tests.projects.trees import histories, plain, shared_judge

DATE = b"Sun, 29 Nov 2026 00:00:00 +0000"
FORMAT_PATCH = (
    "format-patch", "--stdout", "--zero-commit", "--full-index", "--no-signature", "--keep-subject",
    "--no-encode-email-headers",
)  # fmt: skip

_WORDS = st.lists(
    st.sampled_from(["fix", "the", "longer-word-than-most", "Größe", "[Bugfix]", "a", "(#1234)", "x: y"]),
    min_size=1,
    max_size=20,
).map(" ".join)
_TEXTS = st.lists(
    st.sampled_from(["One line.", "", "  indented", "Bug: https://example.org/1", "µ", "-- "]), max_size=6
)


@st.composite
def heads(draw: st.DrawFn) -> Head:
    name = draw(
        st.sampled_from(
            ["A. Writer", "Jürgen", "An Author Whose Name Is Quite Long For A Header Line Of This Kind"]
        )
    )
    text = "\n".join(draw(_TEXTS)).encode()
    head = write_head(Head(f"{name} <a@example.org>".encode(), DATE, draw(_WORDS).encode(), b""))
    return read_head(head + b"\n" + text + b"\n---\n")


def changed(before: Files, after: Files) -> tuple[Files, Files]:
    return (
        {path: file for path, file in before.items() if after.get(path) != file},
        {path: file for path, file in after.items() if before.get(path) != file},
    )


@settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_patches_equal_those_of_git_format_patch(data: st.DataObject) -> None:
    steps = data.draw(histories())
    judge = shared_judge()
    commit = judge.commit(judge.tree(steps[0]), b"base\n")
    base, drafts = commit, []
    for number, (before, after) in enumerate(pairwise(steps)):
        head = data.draw(heads())
        name, _, mail = head.author.decode().rpartition(" ")
        env = {
            "GIT_AUTHOR_NAME": name,
            "GIT_AUTHOR_EMAIL": mail.strip("<>"),
            "GIT_AUTHOR_DATE": raw_date(head.date),
        }
        commit = judge.commit(judge.tree(after), commit_message(head), commit, env=env)
        drafts.append(Draft(f"p{number}", head, *changed(before, after)))
    expected = judge.git(*FORMAT_PATCH, f"{base}..{commit}") if drafts else b""
    # format-patch leaves a blank line between the patches of a mailbox.
    assert b"\n".join(write_patches(drafts)) == expected


@settings(max_examples=examples(30), deadline=None)
@given(heads())
def test_heads_are_read_as_they_were_written(head: Head) -> None:
    assert read_head(write_head(head) + b"---\n") == head
    judge = shared_judge()
    assert write_head(read_head(write_head(head))) == write_head(head)
    assert judge.path.exists()


def test_head_comes_back_from_its_commit() -> None:
    head = Head("Jürgen <j@example.org>".encode(), DATE, b"one", b"two\n\nUpstream-Status: Pending")
    judge = shared_judge()
    env = {
        "GIT_AUTHOR_NAME": "Jürgen",
        "GIT_AUTHOR_EMAIL": "j@example.org",
        "GIT_AUTHOR_DATE": raw_date(DATE),
    }
    commit = judge.commit(judge.tree({}), commit_message(head), env=env)
    assert read_commit(judge.git("cat-file", "commit", commit)) == head


HOSTILE = {
    "prefixes": "[diff]\nnoprefix = true\nmnemonicPrefix = true\nalgorithm = patience\ncontext = 0",
    "colours": "[color]\nui = always\ndiff = always\n[column]\nui = always\n[diff]\nstatGraphWidth = 3",
    "format": "[format]\nsignature = me\nattach = true\nnumbered = true\n[core]\nabbrev = 4",
    "tools": "[diff]\nexternal = false\norderFile = /nowhere\nrenames = copies\ninterHunkContext = 9",
    "attributes": "[core]\nattributesFile = {attributes}\nautocrlf = true\nquotePath = false\neol = crlf",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_configuration_changes_a_byte(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {
        "d/ü.py": plain("def f():\n" + "".join(f"    a{n} = {n}\n" for n in range(30))),
        "old.py": plain("x\n" * 9),
    }
    after = {
        "d/ü.py": plain(before["d/ü.py"].data.replace(b"a7", b"b7").replace(b"a15", b"b")),
        "new.py": plain("x\n" * 9),
    }
    draft = Draft("p", Head(b"A <a@example.org>", DATE, b"s", b"t"), before, after)
    (expected,) = write_patches([draft])
    assert b"rename from old.py" in expected
    attributes = tmp_path / "attributes"
    attributes.write_text("* -diff\n*.py diff=python text eol=crlf\n")
    (tmp_path / "config" / "git").mkdir(parents=True)
    (tmp_path / "config" / "git" / "attributes").write_text("* -diff\n")
    text = HOSTILE[name].format(attributes=attributes)
    for file in (".gitconfig", "config/git/config", "system"):
        (tmp_path / file).write_text(text)
    surroundings = {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "LC_ALL": "tr_TR.UTF-8",
        "GIT_CONFIG_GLOBAL": str(tmp_path / "system"),
        "GIT_CONFIG_SYSTEM": str(tmp_path / "system"),
        "GIT_DIFF_OPTS": "--unified=0",
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "diff.noprefix",
        "GIT_CONFIG_VALUE_0": "true",
        "TZ": "Pacific/Auckland",
        "COLUMNS": "20",
    }
    for key, value in surroundings.items():
        monkeypatch.setenv(key, value)
    assert write_patches([draft]) == [expected]


def test_equal_trees_give_nothing_and_do_not_shift_the_others() -> None:
    one, two = {"a": plain("1\n")}, {"a": plain("2\n")}
    first, nothing, last = diff_all([(one, two), (one, one), (two, one)])
    assert (b"+2" in first, nothing, b"+1" in last) == (True, b"", True)


def test_text_that_looks_like_a_commit_id_is_content() -> None:
    text = "".join(f"{n:040x}\n" for n in range(20))
    first, second = diff_all([({}, {"a": plain(text)}), ({"a": plain("1\n")}, {"a": plain(text)})])
    assert first.count(b"\n+0") == second.count(b"\n+0") == 20


def test_patch_that_changes_nothing_is_refused() -> None:
    head = Head(b"A <a@example.org>", DATE, b"s", b"")
    with pytest.raises(InvalidInput, match="changes nothing"):
        write_patches([Draft("p", head, {"a": plain("1\n")}, {"a": plain("1\n")})])


def test_binary_file_is_refused_by_name() -> None:
    head = Head(b"A <a@example.org>", DATE, b"s", b"")
    with pytest.raises(InvalidInput, match="binary") as caught:
        write_patches([Draft("p", head, {}, {"x.png": SourceFile("100644", b"\x89PNG\0")})])
    assert "x.png" in str(caught.value.found)


@pytest.mark.parametrize(
    ("given", "subject", "text"),
    [
        (b"Subject: [PATCH v2 1/3] one\n two\n\nbody\n---\nnotes\n", b"one two", b"body"),
        (b"From: a <a@b>\nSubject: =?UTF-8?q?Gr=C3=B6=C3=9Fe?=\n\n", "Größe".encode(), b""),
        (b"Only text\n\nand more", b"", b"Only text\n\nand more"),
        (b"Subject: s\n\nblanks  \n\n\n\nend\t\n", b"s", b"blanks\n\nend"),
    ],
)
def test_heads_of_others_are_read(given: bytes, subject: bytes, text: bytes) -> None:
    head = read_head(given)
    assert (head.subject, head.text) == (subject, text)


def test_trailers_are_added_to_the_last_paragraph_or_make_one() -> None:
    head = Head(b"", b"", b"s", b"body")
    one = head.with_trailer("Bug", "https://example.org/1")
    two = one.with_trailer("Bug", "https://example.org/2")
    assert two.text == b"body\n\nBug: https://example.org/1\nBug: https://example.org/2"
    assert two.trailers() == [("Bug", "https://example.org/1"), ("Bug", "https://example.org/2")]
    assert two.without_trailer("bug") == head
