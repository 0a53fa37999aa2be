"""What upstream did to single functions of real releases: known as taken, and never where it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.taken import Tally, measure
from builder.project.releases import release_upstream
from builder.source.upstream import Upstream, resolve_upstream
from tests.conftest import ROOT
from tests.integration.wheels import release_wheel

pytestmark = pytest.mark.integration

RELEASES = ("0.5.17", "0.5.20", "0.5.23")
CACHE = ROOT / "build" / "releases-cache"


@pytest.fixture(scope="module")
def releases() -> dict[str, Upstream]:
    CACHE.mkdir(parents=True, exist_ok=True)
    return {f"v{version}": _release(version, CACHE) for version in RELEASES}


def _release(version: str, cache: Path) -> Upstream:
    wheel = release_wheel(version)
    return resolve_upstream(release_upstream(f"v{version}"), cache, source="wheel", wheel_file=wheel)


def test_taken_changes_are_known_and_needed_ones_are_never_merged(releases: dict[str, Upstream]) -> None:
    tally = measure(releases, 5, Tally(), seed=1)
    assert tally.wrong == []
    assert sum(row.total() for row in tally.needed.values()) > 50
    assert {word for word in tally.taken["the next release"] if not word.startswith("merged")} == set()
    for what, row in tally.taken.items():
        if what != "later releases":
            known = sum(count for word, count in row.items() if word.startswith("merged"))
            assert known >= 0.8 * row.total(), (what, dict(row))
            assert "carry" not in row, what
