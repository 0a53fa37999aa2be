"""Text evidence by construction: whichever hunks upstream took, and whatever it did elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.patch.series import Series
from builder.retire.text import merge_series
from builder.source.files import SourceFile
from builder.source.merge_tree import Merged, Scratch, ThreeWay, open_scratch
from tests.examples import examples
from tests.projects.history import HistoryProject

PATH = "python/sglang/file.py"
MOVED = "python/sglang/other/place.py"
BLOCK = 12


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, set[int], set[int], set[int], bool]:
    """Blocks, those the patch changes, those of them that upstream took, where it added, and a move."""
    blocks = draw(st.integers(2, 7))
    patched = draw(st.sets(st.integers(0, blocks - 1), min_size=1))
    taken = draw(st.sets(st.sampled_from(sorted(patched))))
    added = draw(st.sets(st.integers(0, blocks)))
    return blocks, patched, taken, added, draw(st.booleans())


def written(blocks: int, changed: set[int], added: set[int] = frozenset()) -> bytes:  # type: ignore[assignment]
    lines: list[str] = []
    for block in range(blocks):
        lines += [f"upstream_{block} = 1"] if block in added else []
        inner = [f"value_{block}_{line} = {block * BLOCK + line}" for line in range(BLOCK)]
        inner[6] = f"patched_{block} = 1" if block in changed else inner[6]
        lines += inner
    lines += ["upstream_end = 1"] if blocks in added else []
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> HistoryProject:
    return HistoryProject(tmp_path_factory.mktemp("lab"))


@settings(
    max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(histories())
def test_hunks_that_upstream_took_are_present_and_the_others_carry(
    lab: HistoryProject, history: tuple[int, set[int], set[int], set[int], bool]
) -> None:
    blocks, patched, taken, added, moved = history
    pin = lab.load({PATH: written(blocks, set())})
    place = MOVED if moved else PATH
    target = lab.load({place: written(blocks, taken, added)})
    patch = lab.patch("p", pin, {PATH: written(blocks, patched)})
    with open_scratch() as scratch:
        series = Series("s", (patch,))
        merged = merge_series(series, lab.upstream(pin), lab.upstream(target), scratch)
    (step,) = merged.steps
    states = ["present" if block in taken else "carries" for block in sorted(patched)]
    assert [hunk.state for hunk in step.evidence.hunks] == states
    right = "merged" if taken == patched else "partial" if taken else "moves" if moved else "carries"
    assert step.evidence.state == right
    if right == "merged":
        assert merged.changed == {}
    else:
        carried = merged.changed[place]
        assert carried is not None
        assert carried.data == written(blocks, patched | taken, added)
    lines = written(blocks, taken, added).decode().splitlines()
    for hunk, block in zip(step.evidence.hunks, sorted(patched), strict=True):
        if hunk.line is not None:
            # three lines of context stand above the one that changes
            assert lines[hunk.line - 1 + 3] == f"value_{block}_6 = {block * BLOCK + 6}"


NAMES = ["a/b.py", "a b/%41.py", "ä/\udcff.py", '"quoted".py']


def test_merges_of_a_batch_do_not_touch_each_other(tmp_path: Path) -> None:
    def file(text: str) -> SourceFile:
        return SourceFile("100644", text.encode())

    lines = "".join(f"{number}\n" for number in range(20))
    top, bottom = lines.replace("2\n", "two\n", 1), lines.replace("19\n", "nineteen\n")
    base = {name: file(lines) for name in NAMES}
    questions = [
        ThreeWay(base, {name: file(top) for name in NAMES}, {name: file(bottom) for name in NAMES}),
        ThreeWay(
            base,
            {name: file(top) for name in NAMES},
            {name: file(lines.replace("2\n", "II\n", 1)) for name in NAMES},
        ),
        ThreeWay(base, {}, base),
        ThreeWay({}, {}, {"new": file("x\n")}),
    ]
    both, conflict, deleted, new = Scratch(tmp_path).merge(questions)
    merged = file(top.replace("19\n", "nineteen\n"))
    assert both == Merged(dict.fromkeys(NAMES, merged), ())
    assert sorted(conflict.conflicts) == sorted(NAMES)
    assert all(b"<<<<<<<" in conflict.files[name].data for name in NAMES)
    assert deleted == Merged({}, ())
    assert new.files == {"new": file("x\n")}
