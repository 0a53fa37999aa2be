"""What we write, others read: quilt, git am, patch and StGit make of every series the tree that we make.

And what they write, we read: the same changes come back, in the same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from builder.author.export import as_mailbox, export_applied
from builder.author.importing import ImportOptions, import_input_patches
from builder.author.inputs import InputPatch, read_input_patches, read_quilt, read_range
from builder.author.series_directory import SeriesDirectory, find_series_directory, series_names
from builder.patch.apply import try_series
from builder.patch.diff import FileDiff
from builder.patch.patch import parse_patch
from builder.patch.series_file import read_series_lines
from builder.project.project import find_root
from builder.source.files import SourceFile
from builder.source.git import GitStore
from builder.source.upstream import Mount, Upstream
from tests.conftest import ROOT
from tests.integration.conftest import needed_program
from tests.integration.sources import release_tree
from tests.projects.trees import PLAIN, Judge, plain_git

SERIES = series_names(find_root(ROOT))


class Bench:
    """A series of this repository, and the files it touches in a git repository."""

    def __init__(self, name: str, directory: Path) -> None:
        self.home = find_series_directory(find_root(ROOT), name)
        self.directory = directory
        self.series = self.home.series()
        before = self._sources()
        self.judge = Judge(directory / "judge.git")
        self.commit = self.judge.commit(self.judge.tree(before), b"release\n")
        self.judge.git("branch", "release", self.commit)
        self.upstream = Upstream("x", "repository", (Mount("", GitStore(self.judge.path), self.commit),))
        self.applied = try_series(self.series, before, drop=self.home.drop)
        assert not self.applied.failed
        self.written = [patch.data for patch in export_applied(self.applied)]
        self.tree = self.judge.tree({path: file for path, file in self.applied.after.items() if file})

    def _sources(self) -> dict[str, SourceFile]:
        """The release's files; where the series is for a tree that nobody published, the lines it names."""
        allowances = read_series_lines(self.home.directory).suppressions()
        diffs = {diff.old_path: diff for patch in reversed(self.series.patches) for diff in patch.files}
        self.published = not any(allowance.rule == "applies" for allowance in allowances)
        if not self.published:
            return {path: SourceFile("100644", named_lines(diff)) for path, diff in diffs.items()}
        tree = release_tree(self.home.spec.upstream.release.removeprefix("v"))
        return {
            path: SourceFile(diff.old_mode or "100644", tree.read(path))
            for path, diff in diffs.items()
            if path in tree
        }

    def checkout(self) -> Path:
        """A work tree at the release."""
        path = self.directory / "work"
        clone = ("clone", "--quiet", "--branch", "release", str(self.judge.path), str(path))
        plain_git(*clone, cwd=self.directory)
        return path

    def tree_of(self, checkout: Path) -> str:
        """The tree id of a work tree's files as they are, whatever the tool committed."""
        plain_git("add", "--all", "--", "python", cwd=checkout)
        return plain_git("write-tree", cwd=checkout).decode().strip()

    def import_again(self, input_patches: list[InputPatch]) -> list[bytes]:
        """The diffs of foreign patches once imported into an empty series."""
        empty = self.directory / "empty"
        empty.mkdir()
        (empty / "series").write_text("")
        home: SeriesDirectory = replace(self.home, directory=empty)
        imported = import_input_patches(home, self.upstream, input_patches, ImportOptions())
        return [diff_of(one.data) for one in imported]

    def diffs(self) -> list[bytes]:
        return [diff_of(data) for data in self.written]


def named_lines(diff: FileDiff) -> bytes:
    """A file that has the lines which a diff's hunks name, where they name them."""
    lines: list[bytes] = []
    for hunk in diff.hunks:
        lines += [b"# line %d\n" % number for number in range(len(lines) + 1, hunk.old_start)]
        lines += hunk.old
    return b"".join([*lines, *(b"# after %d\n" % number for number in range(9))])


def diff_of(data: bytes) -> bytes:
    return data[data.index(b"diff --git ") :]


def run(*command: str | Path, cwd: Path, stdin: bytes = b"", **environment: str) -> str:
    others = {key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "QUILT_"))}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=others | PLAIN | {"HOME": str(cwd), "EDITOR": "true"} | environment,
        input=stdin,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout.decode()}\n{done.stderr.decode()}"
    return done.stdout.decode()


@pytest.fixture(params=SERIES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return Bench(request.param, tmp_path)


def test_every_series_is_canonical(bench: Bench) -> None:
    for patch, data in zip(bench.series.patches, bench.written, strict=True):
        if bench.published:
            assert data == patch.data, f"overlay patch export {bench.home.name}"
        else:
            hunks = [diff.hunks for diff in parse_patch(patch.name, data).files]
            assert [hunk.lines for each in hunks for hunk in each] == [
                hunk.lines for diff in patch.files for hunk in diff.hunks
            ]


def test_quilt_pushes_the_series_as_it_lies(bench: Bench) -> None:
    quilt = needed_program("quilt")
    work = bench.checkout()
    out = run(
        quilt, "--quiltrc=-", "push", "-a", "--fuzz=0", cwd=work, QUILT_PATCHES=str(bench.home.directory)
    )
    assert "offset" not in out
    assert bench.tree_of(work) == bench.tree


def test_what_quilt_refreshes_is_read_as_the_same_changes(bench: Bench) -> None:
    quilt = needed_program("quilt")
    work = bench.checkout()
    copy = bench.directory / "quilt"
    shutil.copytree(bench.home.directory, copy)
    for _ in bench.series.patches:
        run(quilt, "--quiltrc=-", "push", cwd=work, QUILT_PATCHES=str(copy))
        run(quilt, "--quiltrc=-", "refresh", cwd=work, QUILT_PATCHES=str(copy))
    input_patches = read_quilt(copy)
    assert all(b"Index: " not in input_patch.diff for input_patch in input_patches)
    assert bench.import_again(input_patches) == bench.diffs()


def test_git_am_takes_the_mailbox_and_format_patch_gives_it_back(bench: Bench) -> None:
    work = bench.checkout()
    mailbox = as_mailbox(export_applied(bench.applied))
    plain_git("am", "--quiet", "--keep-non-patch", "--keep-cr", cwd=work, stdin=mailbox)
    assert bench.tree_of(work) == bench.tree
    subjects = (
        plain_git("log", "--reverse", "--format=%s", "origin/release..HEAD", cwd=work).decode().splitlines()
    )
    assert subjects == [patch.subject for patch in bench.series.patches]
    assert bench.import_again(read_range(work, "origin/release..HEAD")) == bench.diffs()


def test_a_mailbox_of_ours_comes_back_byte_for_byte(bench: Bench) -> None:
    empty = bench.directory / "again"
    empty.mkdir()
    (empty / "series").write_text("")
    mailbox = as_mailbox(export_applied(bench.applied))
    home = replace(bench.home, directory=empty)
    imported = import_input_patches(home, bench.upstream, read_input_patches(mailbox, "x"), ImportOptions())
    # Between two mails of a mailbox is a blank line, so what came in is not quite the file: its hash is kept.
    assert [_without_hash(one.data) for one in imported] == [_without_hash(data) for data in bench.written]


def _without_hash(data: bytes) -> bytes:
    return b"".join(
        line for line in data.splitlines(keepends=True) if not line.startswith(b"Overlay-Import:")
    )


def test_gnu_patch_applies_every_patch_without_fuzz(bench: Bench) -> None:
    program = needed_program("patch")
    work = bench.checkout()
    for patch in bench.series.patches:
        out = run(
            program, "-p1", "--fuzz=0", "--batch", "--no-backup-if-mismatch", cwd=work, stdin=patch.data
        )
        assert "offset" not in out
    assert bench.tree_of(work) == bench.tree


def test_stgit_imports_the_series_and_its_export_is_read_as_the_same_changes(bench: Bench) -> None:
    stg = needed_program("stg")
    work = bench.checkout()
    run(stg, "init", cwd=work)
    for patch in bench.series.patches:
        run(stg, "import", "--mail", bench.home.path(patch.name), cwd=work)
    assert bench.tree_of(work) == bench.tree
    out = bench.directory / "stg"
    run(stg, "export", "--dir", out, cwd=work)
    assert bench.import_again(read_quilt(out)) == bench.diffs()
