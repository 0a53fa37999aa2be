"""``overlay probe`` on the real pins: every patch finds its defect and mends it, and nothing is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.probe.matrix import find_probes
from builder.series import read_series
from tests.conftest import Overlay
from tests.integration.sources import PATCHES
from tests.integration.wheels import SHA256, release_wheel

LANES = {"overlay:dsv4-flash-gb10": "v0.5.17", "overlay:glm53-flash-gb10": "v0.5.20"}


@pytest.fixture
def offline(overlay: Overlay) -> Overlay:
    """The command with the pinned wheels in its cache, and a package index that is not there."""
    wheels = Path(overlay.environment["XDG_CACHE_HOME"]) / "sglang-overlay" / "wheels"
    for release in LANES.values():
        wheel = release_wheel(release.removeprefix("v"))
        place = wheels / SHA256[release.removeprefix("v")]
        place.mkdir(parents=True)
        (place / wheel.name).symlink_to(wheel)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_INDEX": "1"}
    return Overlay(overlay.program, overlay.directory, {**overlay.environment, **nowhere})


def test_the_lanes_have_their_defects_and_mend_them(offline: Overlay) -> None:
    facts = offline("probe", *LANES.values(), *LANES, "--json").check().json
    answers = {probe["name"]: probe["answers"] for probe in facts["probes"]}
    assert sorted(answers) == [path.stem for path in find_probes(PATCHES / "probes")]
    states = [answer["state"] for row in answers.values() for answer in row.values()]
    assert len(states) == len(answers) * 4
    assert "unknown" not in states
    for lane, pin in LANES.items():
        for patch in read_series(PATCHES / pin).names:
            said = (answers[patch][pin]["state"], answers[patch][lane]["state"])
            assert said == ("defect", "fixed"), (lane, patch, answers[patch])
    again = offline("probe", *LANES.values(), *LANES, "--json").check().json
    assert again == facts
