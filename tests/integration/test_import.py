"""Anybody's patches come in by one command, proved on the release, and come out the same ever after."""

from __future__ import annotations

import base64
import hashlib
import json
import quopri
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from builder.author.importing import ImportOptions, import_input_patches
from builder.author.inputs import InputPatch, read_input_patches, read_quilt, read_range
from builder.author.lint.finding import RULES
from builder.author.lint.text import lint_patch
from builder.author.paths import find_reading, rewrite
from builder.author.series_directory import SeriesDirectory, find_series_directory
from builder.errors import InvalidInput, PatchConflict
from builder.project.project import find_root
from builder.source.files import SourceFile
from builder.source.git import GitStore
from builder.source.upstream import Mount, Upstream
from tests.examples import examples
from tests.projects.series import DEMO as DEMO_TEXT
from tests.projects.series import SeriesProject, workshop
from tests.projects.trees import histories, plain, shared_judge

__all__ = ["workshop"]

DEMO = "python/sglang/demo.py"
DIFF = (
    "diff --git a/python/sglang/demo.py b/python/sglang/demo.py\n--- a/python/sglang/demo.py\n"
    "+++ b/python/sglang/demo.py\n@@ -1,5 +1,5 @@\n def f():\n     a = 1\n \n"
    "-    b = 2\n+    b = 3\n     return a + b\n"
)
MAIL = (
    "From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001\nFrom: B. Other <b@example.org>\n"
    "Date: Mon, 1 Jun 2026 10:00:00 +0200\nSubject: [PATCH 1/2] demo: three\n\nTwo was too few.\n\n"
    "Signed-off-by: B. Other <b@example.org>\n---\n python/sglang/demo.py | 2 +-\n\n"
)
SIGNATURE = "-- \n2.45.0\n\n"


def bring(shop: SeriesProject, text: str | bytes, *options: str, file: str = "in.patch") -> dict[str, object]:
    path = shop.directory / file
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = shop("patch", "import", "demo", path, "--json", *options)
    assert ran.code == 0, ran.error
    (one,) = json.loads(ran.out)
    assert isinstance(one, dict)
    return one


def refused(shop: SeriesProject, text: str | bytes, *options: str) -> Exception:
    (shop.directory / "in.patch").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = shop.bytes()
    ran = shop("patch", "import", "demo", shop.directory / "in.patch", *options)
    assert ran.error is not None
    assert shop.bytes() == before
    return ran.error


def settled(shop: SeriesProject) -> None:
    """What was written is canonical, and lint has nothing to say."""
    ran = shop("patch", "lint")
    assert ran.code == 0, ran.out


def test_mail_keeps_author_date_and_text_and_gets_what_can_be_known(workshop: SeriesProject) -> None:
    original = (MAIL + DIFF + SIGNATURE).encode()
    assert bring(workshop, original)["name"] == "in"
    text = workshop.path("in").read_text()
    assert (
        'From: "B. Other" <b@example.org>\nDate: Mon, 1 Jun 2026 10:00:00 +0200\nSubject: demo: three\n'
        in text
    )
    assert "Two was too few.\n\nSigned-off-by: B. Other <b@example.org>\nUpstream-Status: Pending\n" in text
    assert "Origin: commit:" + "1" * 40 in text
    assert f"Overlay-Import: sha256:{hashlib.sha256(original).hexdigest()}\n---\n" in text
    settled(workshop)


def test_bare_diff_from_standard_input_is_named_and_dated_without_a_clock(workshop: SeriesProject) -> None:
    bring(workshop, DIFF, "--name", "mine", "--author", "C <c@example.org>", "--bug", "https://a.example/1")
    text = workshop.path("mine").read_text()
    assert "From: C <c@example.org>\nDate: Sun, 29 Nov 2026 00:00:00 +0000\nSubject: mine\n" in text
    assert "Bug: https://a.example/1" in text
    settled(workshop)


def test_pull_request_of_several_commits_is_kept_or_squashed(workshop: SeriesProject) -> None:
    second = MAIL.replace("1/2", "2/2").replace("three", "four").replace("1" * 40, "2" * 40)
    both = (
        MAIL
        + DIFF
        + SIGNATURE
        + second
        + DIFF.replace("b = 3", "b = 4").replace("b = 2", "b = 3")
        + SIGNATURE
    )
    path = workshop.directory / "123.patch"
    path.write_text(both)
    ran = workshop("patch", "import", "demo", path, "--dry-run", "--json")
    assert [one["name"] for one in json.loads(ran.out)] == ["demo-three", "demo-four"]
    assert workshop.names() == []
    assert workshop("patch", "import", "demo", path, "--squash", "--name", "all").code == 0
    text = workshop.path("all").read_text()
    assert "- demo: four\n\nTwo was too few." in text
    assert "-    b = 2\n+    b = 4" in text
    settled(workshop)


def test_quilt_directory_comes_in_by_its_series_and_strip_levels(workshop: SeriesProject) -> None:
    quilt = workshop.directory / "quilt"
    quilt.mkdir()
    plain_diff = DIFF.split("\n", 1)[1]
    (quilt / "series").write_text("zz.patch -p0 # first\n# no\naa.diff\n")
    zero = plain_diff.replace("a/python", "python").replace("b/python", "python")
    dep3 = "Description: make it three\n Two was too few.\n .\n Really.\nAuthor: D <d@example.org>\n"
    dep3 += "Forwarded: https://a.example/pull/9\n\n"
    (quilt / "zz.patch").write_text(dep3 + "Index: demo.py\n=====\n" + zero)
    (quilt / "aa.diff").write_text(plain_diff.replace("b = 3", "b = 4").replace("b = 2", "b = 3"))
    ran = workshop("patch", "import", "demo", quilt, "--json")
    assert ran.code == 0, ran.error
    assert workshop.names() == ["zz", "aa"]
    text = workshop.path("zz").read_text()
    assert "From: D <d@example.org>" in text
    assert (
        "Subject: make it three\n\nTwo was too few.\n\nReally.\n\nForwarded: https://a.example/pull/9\n"
        in text
    )
    assert "Upstream-Status: Submitted [https://a.example/pull/9]\n" in text
    settled(workshop)


def test_range_of_commits_comes_in_as_they_are(workshop: SeriesProject) -> None:
    shop = workshop
    shop.git("checkout", "--quiet", "-b", "work")
    for number in (3, 4):
        (shop.upstream / DEMO).write_text(DEMO_TEXT.replace("b = 2", f"b = {number}"))
        shop.git("commit", "--quiet", "--all", "-m", f"demo: {number}\n\nWhy {number}.")
    ran = shop("patch", "import", "demo", shop.upstream, f"{shop.commit}..work", "--json")
    assert ran.code == 0, ran.error
    assert shop.names() == ["demo-3", "demo-4"]
    assert (
        f"Origin: commit:{shop.git('rev-parse', 'work~1').decode().strip()}"
        in shop.path("demo-3").read_text()
    )
    settled(shop)
    assert shop("patch", "import", "demo", shop.upstream, "--output=x").code != 0
    with pytest.raises(InvalidInput):
        read_range(shop.upstream, "--output=/tmp/x..y")


def test_configuration_of_the_repository_runs_nothing_and_changes_nothing(workshop: SeriesProject) -> None:
    shop = workshop
    (shop.upstream / DEMO).write_text(DEMO_TEXT.replace("b = 2", "b = 3"))
    (shop.upstream / ".gitattributes").write_text("*.py diff=evil\n")
    shop.git("commit", "--quiet", "--all", "-m", "three")
    plain_text = [input_patch.diff for input_patch in read_range(shop.upstream, f"{shop.commit}..HEAD")]
    owned = shop.directory / "owned"
    for key, value in {
        "diff.external": f"touch {owned}; false", "diff.evil.textconv": f"touch {owned}; cat",
        "diff.noprefix": "true", "diff.context": "0", "format.attach": "true", "format.signOff": "true",
        "format.coverLetter": "true", "color.ui": "always", "format.thread": "deep",
    }.items():  # fmt: skip
        shop.git("config", key, value)
    assert [
        input_patch.diff for input_patch in read_range(shop.upstream, f"{shop.commit}..HEAD")
    ] == plain_text
    assert not owned.exists()


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_damaged_input_is_refused_or_read_and_nothing_else(data: st.DataObject) -> None:
    """Whatever somebody does to a patch's bytes: a value, findings, or InvalidInput."""
    lines = (MAIL + DIFF + SIGNATURE).encode().split(b"\n")
    odd = [
        b"",
        b"--- a/x",
        b"+++ b/x",
        b"@@ -0,0 +1,9 @@",
        b"@@ -1 +1",
        b"-- ",
        b"\xff\r",
        b"diff --git a",
        b"From ",
    ]
    odd += [
        b"Content-Transfer-Encoding: base64",
        b"rename from x",
        b"+++ ",
        b"Bug:",
        b"---",
        b"Upstream-Status: x",
    ]
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines) - 1))
        pool = st.sampled_from([*odd, *lines])
        lines[at : at + data.draw(st.integers(0, 2))] = data.draw(st.lists(pool, max_size=2))
    text = b"\n".join(lines)
    for finding in lint_patch("p", "patches/demo/p.patch", text):
        assert finding.rule in RULES
    try:
        for input_patch in read_input_patches(text, "p.patch"):
            rewrite(input_patch.diff, find_reading(input_patch.diff, {DEMO}, "p"))
    except InvalidInput as error:
        if not error.where:
            raise


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("python/sglang/demo.py", "-p0"),
        ("x/y/python/sglang/demo.py", "-p2"),
        ("a/sglang/demo.py", "sglang/ is python/sglang/"),
        ("/usr/lib/python3/dist-packages/sglang/demo.py", "site-packages/sglang/ is python/sglang/"),
        ("a/opt/venv/lib/python3.12/site-packages/sglang/demo.py", "site-packages/sglang/ is python/sglang/"),
    ],
)
def test_strip_levels_and_prefixes_are_recognised_and_said(
    workshop: SeriesProject, written: str, said: str
) -> None:
    text = (
        f"--- {written}\t2026-01-01 00:00:00\n+++ {written}\t2026-01-02 00:00:00\n@@" + DIFF.split("@@", 1)[1]
    )
    assert said in str(bring(workshop, text, "--name", "p")["reading"])
    assert f"--- a/{DEMO}\n+++ b/{DEMO}\n" in workshop.path("p").read_text()
    settled(workshop)


def test_patch_for_another_program_is_refused(workshop: SeriesProject) -> None:
    error = refused(workshop, DIFF.replace("sglang/demo.py", "vllm/engine.py"))
    assert "no file of the patch is in the release" in str(error)


def test_what_editors_and_mailers_did_is_repaired_and_said(workshop: SeriesProject) -> None:
    """A1, A3, A4, A5 in one file."""
    broken = (MAIL + DIFF).replace("-1,5 +1,5", "-1,4 +1,3").replace("\n \n", "\n\n").rstrip("\n")
    one = bring(workshop, broken.replace("\n", "\r\n"))
    repaired = one["mended"]
    assert isinstance(repaired, list)
    assert {repair["rule"] for repair in repaired} == {
        "line-endings",
        "last-newline",
        "blank-context",
        "hunk-counts",
    }
    settled(workshop)


def test_crlf_patch_of_a_crlf_file_fits_and_of_an_lf_file_fits_too(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    shop = SeriesProject(tmp_path, {DEMO: plain(DEMO_TEXT.replace("\n", "\r\n"))})
    bring(shop, (MAIL + DIFF).replace("\n", "\r\n"))
    assert b"+    b = 3\r\n" in shop.path("in").read_bytes()
    settled(shop)


def test_lf_patch_of_a_crlf_file_is_refused_with_both_endings(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    shop = SeriesProject(tmp_path, {DEMO: plain(DEMO_TEXT.replace("\n", "\r\n"))})
    error = refused(shop, DIFF)
    assert isinstance(error, PatchConflict)
    assert (error.expected, error.found) == ("LF (patch)", "CRLF (file)")


def test_files_that_the_release_lacks_are_dropped_and_listed(workshop: SeriesProject) -> None:
    extra = DIFF.replace("python/sglang/demo.py", "test/srt/test_demo.py")
    image = "diff --git a/docs/x.png b/docs/x.png\nindex 1111111..2222222 100644\n"
    image += "Binary files a/docs/x.png and b/docs/x.png differ\n"
    one = bring(workshop, extra + image + DIFF)
    assert one["dropped"] == [
        {"path": "test/srt/test_demo.py", "rule": "test/*"},
        {"path": "docs/x.png", "rule": "docs/*"},
    ]
    assert "test_demo" not in workshop.path("in").read_text()
    settled(workshop)


def test_binary_change_that_no_rule_drops_is_refused(workshop: SeriesProject) -> None:
    image = "diff --git a/python/sglang/x.png b/python/sglang/x.png\nindex 1111111..2222222 100644\n"
    image += "GIT binary patch\nliteral 3\nKcmZQzU|?hb001HZ0Du4h\n\n"
    assert "binary" in str(getattr(refused(workshop, DIFF + image), "details", ""))


def test_patch_that_does_not_apply_changes_nothing(workshop: SeriesProject) -> None:
    assert isinstance(refused(workshop, DIFF.replace("a = 1", "a = 7")), PatchConflict)
    workshop.add("one", (DEMO, "b = 2", "b = 3"))
    error = refused(workshop, DIFF)
    assert "from patch one" in str(getattr(error, "details", ""))


def test_lost_content_is_not_passed_over(workshop: SeriesProject) -> None:
    assert "belongs to no hunk" in str(refused(workshop, DIFF + "Index: x\n-lost line\n"))


@pytest.mark.parametrize("encoding", ["quoted-printable", "base64"])
def test_encoded_mails_are_read_with_their_diff(workshop: SeriesProject, encoding: str) -> None:
    head, _, body = (MAIL + DIFF.replace("b = 3", "b = 3  # Größe")).partition("\n\n")
    encode = quopri.encodestring if encoding == "quoted-printable" else base64.encodebytes
    mail = f"{head}\nContent-Transfer-Encoding: {encoding}\n\n".encode() + encode(body.encode())
    bring(workshop, mail)
    text = workshop.path("in").read_text()
    assert "\nTwo was too few." in text
    assert "\n+    b = 3  # Größe\n" in text
    settled(workshop)


def test_offsets_are_gone_after_import(workshop: SeriesProject) -> None:
    assert bring(workshop, DIFF.replace("-1,5 +1,5", "-3,5 +3,5"))["offsets"] == 1
    assert "@@ -1,5 +1,5 @@" in workshop.path("in").read_text()


# --- fixed points -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> SeriesDirectory:
    directory = tmp_path_factory.mktemp("home")
    (directory / "home").mkdir()
    return find_series_directory(find_root(SeriesProject(directory).root), "demo")


def release(tree: dict[str, SourceFile]) -> Upstream:
    judge = shared_judge()
    return Upstream(
        "v1", "repository", (Mount("", GitStore(judge.path), judge.commit(judge.tree(tree), b"x")),)
    )


def fixed_point(
    home: SeriesDirectory, upstream: Upstream, input_patches: list[InputPatch], after: dict[str, SourceFile]
) -> None:
    """Importing gives the tree that git has; importing what was written gives the same bytes."""
    once = import_input_patches(home, upstream, input_patches, ImportOptions())
    again = import_input_patches(
        home, upstream, [p for one in once for p in read_input_patches(one.data, one.name)], ImportOptions()
    )
    assert [one.data for one in again] == [one.data for one in once]
    mailbox = b"\n".join(one.data for one in once)
    assert [
        one.data
        for one in import_input_patches(home, upstream, read_input_patches(mailbox, "x"), ImportOptions())
    ] == [one.data for one in once]
    judge = shared_judge()
    index = {"GIT_INDEX_FILE": str(judge.path / "fixed-index")}
    judge.git("read-tree", upstream.main.commit, env=index)
    for one in once:
        judge.git("apply", "--cached", "--whitespace=nowarn", "-", stdin=one.data, env=index)
    assert judge.git("write-tree", env=index).decode().strip() == judge.tree(after)


def in_package(steps: list[dict[str, SourceFile]]) -> list[dict[str, SourceFile]]:
    """The same history of files that are in an image."""
    return [{f"python/sglang/{path}": file for path, file in step.items()} for step in steps]


STEPS = histories().map(in_package)
STEADY = settings(
    max_examples=examples(4),
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@STEADY
@given(steps=STEPS)
def test_git_mailboxes_are_a_fixed_point(home: SeriesDirectory, steps: list[dict[str, SourceFile]]) -> None:
    judge = shared_judge()
    base = tip = judge.commit(judge.tree(steps[0]), b"base")
    for number, step in enumerate(steps[1:]):
        tip = judge.commit(judge.tree(step), f"Größe {number}\n\nText.\n".encode(), tip)
    if base != tip:
        mailbox = judge.git("format-patch", "--stdout", f"{base}..{tip}")
        fixed_point(home, release(steps[0]), read_input_patches(mailbox, "x"), steps[-1])


@STEADY
@given(steps=STEPS)
def test_bare_diffs_are_a_fixed_point(home: SeriesDirectory, steps: list[dict[str, SourceFile]]) -> None:
    judge = shared_judge()
    trees = [judge.tree(step) for step in steps]
    diffs = [judge.diff(a, b, "--abbrev=7", "--no-renames") for a, b in pairwise(trees)]
    if diffs:
        fixed_point(
            home, release(steps[0]), [p for d in diffs for p in read_input_patches(d, "x")], steps[-1]
        )


@STEADY
@given(steps=STEPS, crlf=st.booleans())
def test_quilt_directories_are_a_fixed_point(
    home: SeriesDirectory,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[dict[str, SourceFile]],
    crlf: bool,
) -> None:
    judge = shared_judge()
    quilt = tmp_path_factory.mktemp("quilt")
    diffs = [judge.diff(a, b) for a, b in pairwise([judge.tree(step) for step in steps])]
    for number, diff in enumerate(diffs):
        (quilt / f"p{number}.patch").write_bytes(b"What it does.\n\n" + diff)
    ending = "\r\n" if crlf else "\n"
    (quilt / "series").write_bytes("".join(f"p{n}.patch -p1{ending}" for n in range(len(diffs))).encode())
    if diffs:
        fixed_point(home, release(steps[0]), read_quilt(quilt), steps[-1])


def test_a_file_of_ten_thousand_lines_is_a_fixed_point(home: SeriesDirectory) -> None:
    lines = [b"line %d\n" % number for number in range(10_000)]
    before = {"python/sglang/d/long.py": SourceFile("100644", b"".join(lines))}
    after = {
        "python/sglang/d/long.py": SourceFile(
            "100644", b"".join(lines[:5] + lines[9:5000] + [b"new\n"] * 3 + lines[5000:])
        )
    }
    judge = shared_judge()
    diff = judge.diff(judge.tree(before), judge.tree(after))
    fixed_point(home, release(before), read_input_patches(diff, "x"), after)
