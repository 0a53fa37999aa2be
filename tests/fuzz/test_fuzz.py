"""Readers of foreign input, fuzzed: an answer or one of overlay's own errors, in bounded time.

Five seconds each with a fixed seed here; ``make fuzz SECONDS=600 SEED=7`` takes longer and looks elsewhere.
What was found once stays in ``corpus/TARGET/``, and is read first.
"""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from builder.errors import OverlayError
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
SECONDS = float(os.environ.get("OVERLAY_FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("OVERLAY_FUZZ_SEED", "0"))
LONGEST = 3.0  # seconds of processor time for an input of some kilobytes


FIELDS = (0, 100, 108, 116, 124, 136, 156, 157, 257, 345, 482, 483)  # where those of a tar's header begin


def _field(number: int) -> int:
    return number // len(FIELDS) * 512 + FIELDS[number % len(FIELDS)]


@st.composite
def inputs(draw: st.DrawFn, target: Target) -> bytes:
    """A sound input that is changed where its structure is, and then byte by byte."""
    seed = draw(st.sampled_from(target.seeds))
    for _ in range(draw(st.integers(0, 6))):
        seed = target.change(draw, seed)
    data = bytearray(seed)
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):  # written over what is there, so that a tar's blocks stay in their places
            at = draw(st.one_of(st.builds(_field, st.integers(0, 239)), st.integers(0, len(data))))
            new = draw(st.one_of(st.sampled_from(target.words), st.binary(min_size=1, max_size=12)))
            data[at : at + len(new)] = new
            continue
        at = draw(st.integers(0, len(data)))
        end = at + draw(st.sampled_from((0, 1, 2, 8, 40, 512, 4000)))
        changes = (st.sampled_from(target.words), st.just(bytes(data[at:end]) * 2), st.just(b""))
        data[at:end] = draw(st.one_of(changes))
    return target.prepare(bytes(data[: 64 << 10]))


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_changed_is_sound(name: str) -> None:
    """Else every change of it would be refused for the same reason."""
    for data in TARGETS[name].seeds:
        TARGETS[name].read(data)


def check(target: Target, data: bytes) -> None:
    start = time.process_time()
    with suppress(OverlayError):
        target.read(data)
    assert time.process_time() - start < LONGEST


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_what_was_found_once(path: Path) -> None:
    check(TARGETS[path.parent.name], path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_of_foreign_input(name: str) -> None:
    target = TARGETS[name]
    end = time.monotonic() + SECONDS
    number = SEED * 1_000_000
    failing: list[bytes] = []

    def read(data: bytes) -> None:
        try:
            check(target, data)
        except BaseException:
            failing[:] = [data]  # the last one is the smallest
            raise

    while time.monotonic() < end:
        number += 1
        fuzz = seed(number)(
            settings(
                max_examples=50,
                database=None,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )(given(inputs(target))(read))
        )
        try:
            fuzz()
        except BaseException as error:
            kept = CORPUS / name / hashlib.sha256(failing[0]).hexdigest()[:12]
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(failing[0])
            error.add_note(f"the input is kept as {kept}")
            raise
