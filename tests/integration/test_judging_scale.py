"""Large series and long histories: right, and in time."""

from __future__ import annotations

from pathlib import Path

from builder.patch.patch import Patch, parse_patch
from builder.patch.series import Series
from builder.retire.history import MAX_RUNS, bisect, commits_between
from builder.retire.text import merge_series
from builder.source.merge_tree import open_scratch
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject, mail

FILES = 6000
PATCHES = 100


def path_of(number: int) -> str:
    return f"python/sglang/part{number % 40}/module{number}.py"


def source_of(number: int) -> list[str]:
    """A file of 60 lines that is like no other."""
    return [f"value_{number}_{line} = {number * 61 + line}" for line in range(60)]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def edit(lines: list[str], line: int, by: str) -> list[str]:
    return [*lines[:line], f"patched_{line} = {by!r}", *lines[line + 1 :]]


def diff_of(number: int, line: int, by: str) -> bytes:
    """A hunk at one line, written by hand: 100 runs of git would take longer than what is measured."""
    lines, path = source_of(number), path_of(number)
    context = [f" {other}\n" for other in lines[line - 3 : line]]
    after = [f" {other}\n" for other in lines[line + 1 : line + 4]]
    body = [*context, f"-{lines[line]}\n", f"+{edit(lines, line, by)[line]}\n", *after]
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -{line - 2},7 +{line - 2},7 @@\n"
    return (head + "".join(body)).encode()


def build(lab: HistoryProject) -> tuple[str, str, list[Patch], list[str]]:
    """A tree, a series, a target, and what is right for each patch.

    Patch *n* edits the files 4n to 4n+3 at line 10, and the first file of patch n+1 at line 40, so that
    neighbours share a file.
    """
    patches, right = [], []
    target = {path_of(number): source_of(number) for number in range(FILES)}
    for number in range(PATCHES):
        edits = [(4 * number + part, 10) for part in range(4)]
        if number + 1 < PATCHES:
            edits.append((4 * number + 4, 40))
        diff = b"".join(diff_of(file, line, f"p{number}") for file, line in edits)
        patches.append(parse_patch(f"p{number}", mail(f"p{number}", diff)))
        kind = ("merged", "carries", "merged", "conflict", "merged", "moves", "merged", "carries")[number % 8]
        right.append(kind)
        for file, line in edits:
            if kind == "merged":
                target[path_of(file)] = edit(target[path_of(file)], line, f"p{number}")
        if kind == "conflict":
            target[path_of(edits[1][0])][10] = "upstream = 'something else'"
        elif kind == "moves":
            target[path_of(edits[1][0]).replace("module", "moved")] = target.pop(path_of(edits[1][0]))
        if number % 3 == 0:  # refactored: what is merged or carried stands lower, beside new neighbours
            place = path_of(edits[2][0])
            target[place] = ["import new", *target[place][:30], "between = 1", *target[place][30:]]
    pin = {path_of(number): text(source_of(number)) for number in range(FILES)}
    return lab.load(pin), lab.load({path: text(lines) for path, lines in target.items()}), patches, right


def test_a_hundred_patches_half_of_them_squash_merged(tmp_path: Path) -> None:
    lab = HistoryProject(tmp_path)
    pin, target, patches, right = build(lab)
    series = Series("large", tuple(patches))
    with open_scratch() as scratch:
        merged = merge_series(series, lab.upstream(pin), lab.upstream(target), scratch)
    assert not merged.applied.failed
    assert [merged.evidence[patch.name].state for patch in patches] == right


def test_bisection_over_a_thousand_commits_asks_twelve_times_at_most(tmp_path: Path) -> None:
    lab = HistoryProject(tmp_path)
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    for fixed_at in (0, 1, 499, 637, 998, 999):
        end, commits = lab.chain(pin, 1000, lambda n, at=fixed_at: P0_AFTER if n >= at else P0_BEFORE)
        asked: list[str] = []

        def changed(commit: str, asked: list[str] = asked) -> bool:
            asked.append(commit)
            return b"b = 3" in lab.git("show", f"{commit}:{DEMO}").encode()

        span = commits_between(lab.repository, pin, end)
        assert span.commits == tuple(commits)
        found = bisect(span, changed)
        assert found.commit == commits[fixed_at]
        assert len(asked) == found.runs <= MAX_RUNS


def test_probe_bisects_a_thousand_commits_through_a_whole_judgement(tmp_path: Path) -> None:
    lab = HistoryProject(tmp_path)
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER})
    end, commits = lab.chain(pin, 1000, lambda n: P0_AFTER if n >= 321 else P0_BEFORE)
    history = lab.judge(pin, [patch], end).of("p0", end).evidence.history
    assert history is not None
    assert (history.commit, history.subject) == (commits[321], "commit 321 (#321)")
    assert (history.pull_request, history.runs <= MAX_RUNS) == ("#321", True)


def test_commits_of_which_the_probe_cannot_tell_are_stepped_over(tmp_path: Path) -> None:
    lab = HistoryProject(tmp_path)
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    end, commits = lab.chain(pin, 64, lambda n: b"%d\n" % n)
    order = {commit: number for number, commit in enumerate(commits)}

    def changed(commit: str) -> bool | None:
        number = order[commit]
        return None if number in (31, 32) else number >= 40

    found = bisect(commits_between(lab.repository, pin, end), changed)
    assert found.commit == commits[40]

    def never(commit: str) -> None:
        return None

    told = bisect(commits_between(lab.repository, pin, end), never)
    assert (told.commit, told.note.startswith("one of the 64 commits")) == (None, True)
