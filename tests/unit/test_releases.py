"""Releases by name: their order, and how a user adds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import InvalidInput
from builder.project.releases import known_releases, release_order, release_upstream, releases_after

COMMIT, SHA256 = "0" * 40, "a" * 64


def test_releases_are_ordered_as_versions() -> None:
    ordered = ["main", "v0.5.9", "v0.5.20rc1", "v0.5.20", "v0.5.20.post1", "v0.5.21", "v0.10.0"]
    mixed = [ordered[number] for number in (5, 2, 0, 6, 4, 1, 3)]
    assert sorted(mixed, key=release_order) == ordered


def test_every_known_release_is_pinned_by_its_wheel() -> None:
    for name, pin in known_releases().items():
        assert pin.wheel is not None
        assert pin.wheel.requirement == f"sglang=={name.removeprefix('v')}"


def test_all_after_a_pin_are_the_newer_ones_oldest_first() -> None:
    assert releases_after("v0.5.20")[:3] == ["v0.5.21", "v0.5.22", "v0.5.23"]
    assert releases_after("v99.0.0") == []


def test_a_root_adds_releases_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "releases.yaml").write_text(f"v99.0.0: {{commit: {COMMIT}, wheel: {SHA256}}}\n")
    assert release_upstream("v99.0.0", tmp_path).commit == COMMIT
    assert releases_after("v98.0.0", tmp_path) == ["v99.0.0"]
    assert "v0.5.20" in known_releases(tmp_path)


@pytest.mark.parametrize(
    "table", ["[1]", "v1.0.0: {commit: null}", "v1.0.0: {wheel: short}", "a: [", "v1: 2"]
)
def test_table_of_another_form_is_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "releases.yaml").write_text(table)
    with pytest.raises(InvalidInput) as caught:
        known_releases(tmp_path)
    assert caught.value.where == str(tmp_path / "releases.yaml")


def test_unknown_release_names_the_nearest() -> None:
    with pytest.raises(InvalidInput) as caught:
        release_upstream("v0.5.200")
    assert "did you mean v0.5.20?" in str(caught.value.hint)
