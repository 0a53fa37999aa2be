"""What was found once is not asked again, and is believed only whole and in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import builder.retire.evaluate as judging
from builder.patch.patch import Patch
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A note of each merge that git is asked for, all in this process."""
    monkeypatch.setattr(judging.os, "cpu_count", lambda: 1)
    noted: list[object] = []
    real = judging.merge_series

    def noting(*arguments, **options):  # type: ignore[no-untyped-def]
        noted.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(judging, "merge_series", noting)
    return noted


def series(lab: HistoryProject) -> tuple[str, list[Patch]]:
    pin = lab.commit({DEMO: P0_BEFORE}, tag="v1.0.0")
    lab.probe("p0")
    patches = [lab.patch("p0", pin, {DEMO: P0_AFTER})]
    lab.commit({DEMO: P0_BEFORE + b"\n\nx = 1\n"}, tag="v1.1.0")
    lab.commit({DEMO: P0_AFTER}, tag="v1.2.0")
    return pin, patches


def entries(lab: HistoryProject) -> list[Path]:
    return sorted((lab.cache / "evidence").iterdir())


def test_again_is_the_same_without_a_merge(lab: HistoryProject, merges: list[object]) -> None:
    pin, patches = series(lab)
    first = lab.judge(pin, patches, "v1.1.0", "v1.2.0")
    assert len(merges) == 2
    again = lab.judge(pin, patches, "v1.1.0", "v1.2.0")
    assert len(merges) == 2
    assert again.as_json() == first.as_json()
    assert again.evaluations == first.evaluations


def test_side_by_side_finds_the_same(lab: HistoryProject, monkeypatch: pytest.MonkeyPatch) -> None:
    pin, patches = series(lab)
    found = []
    for processors in (1, 2, 3):
        shutil.rmtree(lab.cache, ignore_errors=True)
        monkeypatch.setattr(judging.os, "cpu_count", lambda count=processors: count)
        found.append(lab.judge(pin, patches, "v1.0.0", "v1.1.0", "v1.2.0").evaluations)
    assert found[0] == found[1] == found[2]


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def edited(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"carries"', b'"merged"'))


def another(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def nothing(path: Path, other: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, edited, another, nothing])
def test_damaged_entry_is_made_again(
    lab: HistoryProject, merges: list[object], damage: Callable[[Path, Path], None]
) -> None:
    pin, patches = series(lab)
    first = lab.judge(pin, patches, "v1.1.0", "v1.2.0")
    kept = {path: path.read_bytes() for path in entries(lab)}
    one, other = kept
    damage(one, other)
    damage(other, one)
    assert lab.judge(pin, patches, "v1.1.0", "v1.2.0").as_json() == first.as_json()
    assert len(merges) in (3, 4)  # whichever was damaged; a file copied over itself is whole
    assert {path: path.read_bytes() for path in entries(lab)} == kept


def test_another_probe_or_patch_is_asked_anew(lab: HistoryProject, merges: list[object]) -> None:
    pin, patches = series(lab)
    lab.judge(pin, patches, "v1.1.0")
    probe = lab.probes / "p0.py"
    probe.write_text(probe.read_text() + "\n# other\n")
    lab.judge(pin, patches, "v1.1.0")
    assert len(merges) == 2
    other = lab.patch("p0", pin, {DEMO: P0_AFTER + b"\n\ny = 1\n"})
    lab.judge(pin, [other], "v1.1.0")
    assert len(merges) == 3


def test_what_a_limit_ended_is_asked_again(lab: HistoryProject, merges: list[object]) -> None:
    pin, patches = series(lab)
    lab.probe("p0", "def probe(tree):\n    while True: pass\n")
    first = lab.judge(pin, patches, "v1.2.0", timeout=1)
    assert first.evaluations[0].verdict.word == "unknown"
    (entry,) = entries(lab)
    assert b'"asked":null' in entry.read_bytes()
    lab.judge(pin, patches, "v1.2.0", timeout=1)
    assert len(merges) == 1  # its text is known


def test_a_probe_that_cannot_tell_is_not_asked_again(lab: HistoryProject, merges: list[object]) -> None:
    pin, patches = series(lab)
    lab.probe("p0", "from builder.probe.harness import unknown\ndef probe(tree): return unknown('other')\n")
    first = lab.judge(pin, patches, "v1.1.0")
    assert first.evaluations[0].verdict.word == "unknown"
    assert lab.judge(pin, patches, "v1.1.0").evaluations == first.evaluations
    assert len(merges) == 1
