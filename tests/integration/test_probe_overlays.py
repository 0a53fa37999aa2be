"""``overlay probe`` on the real pins: every patch of an overlay finds its defect and repairs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.probe.evaluate import find_probes
from tests.conftest import Overlay
from tests.integration.sources import PATCHES
from tests.integration.wheels import SHA256, release_wheel

LANES = {
    "overlay:dsv4-flash-gb10": "v0.5.17",
    "overlay:glm53-flash-gb10": "v0.5.20",
    "overlay:glm53-flash-gb10-v0.5.23": "v0.5.23",
    "overlay:dsv4-flash-gb10-v0.5.23": "v0.5.23",
    "overlay:sm12x-v0.5.23": "v0.5.23",
}
PINS = tuple(dict.fromkeys(LANES.values()))


@pytest.fixture
def offline(overlay: Overlay) -> Overlay:
    """The command with the pinned wheels in its cache, and a package index that is not there."""
    wheels = Path(overlay.environment["XDG_CACHE_HOME"]) / "sglang-overlay" / "wheels"
    for release in PINS:
        wheel = release_wheel(release.removeprefix("v"))
        place = wheels / SHA256[release.removeprefix("v")]
        place.mkdir(parents=True)
        (place / wheel.name).symlink_to(wheel)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_INDEX": "1"}
    return Overlay(overlay.program, overlay.directory, {**overlay.environment, **nowhere})


def patches_of(lane: str, overlay: Overlay) -> list[str]:
    shown = overlay("show", lane.removeprefix("overlay:"), "--json").check().json
    return [str(patch["name"]) for patch in shown["patches"]]


def test_the_lanes_have_their_defects_and_repair_them(offline: Overlay) -> None:
    facts = offline("probe", *PINS, *LANES, "--json").check().json
    answers = {probe["name"]: probe["answers"] for probe in facts["probes"]}
    assert sorted(answers) == [path.stem for path in find_probes(PATCHES / "probes")]
    assert all(row.keys() == {*PINS, *LANES} for row in answers.values())
    for lane, pin in LANES.items():
        for patch in patches_of(lane, offline):
            said = (answers[patch][pin]["state"], answers[patch][lane]["state"])
            assert said == ("defect", "fixed"), (lane, patch, answers[patch])
    again = offline("probe", *PINS, *LANES, "--json").check().json
    assert again == facts
