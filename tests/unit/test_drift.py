"""What of a build's inputs is not what the lock was written with: each of them, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from builder.build.drift import drift_error, find_drift, unversioned_changes
from builder.errors import InvalidInput
from builder.project.lock import Lock

INPUTS: dict[str, Any] = {
    "created": "2026-01-31T00:00:00Z",
    "patches": [{"name": "a", "sha256": "1" * 64}, {"name": "b", "sha256": "2" * 64}],
    "schema": 1,
    "spec": {"name": "demo", "version": "1", "base": {"image": "x", "roots": {}}, "hardware": ["12.1"]},
    "template": "3" * 64,
    "tool": "0.1.0",
}
BASE = "sha256:" + "4" * 64


def lock(inputs: Any = INPUTS, *, base: str = BASE, platform: str = "linux/arm64") -> Lock:
    return Lock(images={platform: {"base": base}}, sections={"inputs": inputs})


def a_base(digest: str = BASE, platform: str = "linux/arm64") -> Any:
    return SimpleNamespace(platform=platform, manifest=SimpleNamespace(digest=digest))


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    value = copy.deepcopy(INPUTS)
    change(value)
    return value


def test_what_is_as_it_was_has_not_drifted() -> None:
    assert find_drift(lock(), copy.deepcopy(INPUTS), [a_base()]) == []


@pytest.mark.parametrize(
    ("change", "drifts"),
    [
        (
            lambda now: now.update(created="2027-01-31T00:00:00Z"),
            [
                (
                    "time",
                    "SOURCE_DATE_EPOCH, or the spec's date",
                    "2026-01-31T00:00:00Z",
                    "2027-01-31T00:00:00Z",
                )
            ],
        ),
        (lambda now: now.update(schema=2), [("schema", "the tool's manifest schema", "1", "2")]),
        (lambda now: now.update(tool="0.2.0"), [("tool", "the tool's version", "0.1.0", "0.2.0")]),
        (
            lambda now: now.update(template="5" * 64),
            [("template", "Dockerfile.in", "3" * 64, "5" * 64)],
        ),
        (lambda now: now["spec"]["base"].update(image="y"), [("spec", "base.image", "x", "y")]),
        (
            lambda now: now["spec"].update(hardware=["12.0"]),
            [("spec", "hardware", "['12.1']", "['12.0']")],
        ),
        (lambda now: now["spec"].update(new=1), [("spec", "new", "not there", "1")]),
        (lambda now: now["spec"].pop("hardware"), [("spec", "hardware", "['12.1']", "not there")]),
        (
            lambda now: now["patches"][1].update(sha256="6" * 64) or now["spec"].update(version="2"),
            [("spec", "version", "1", "2"), ("patch", "b", "2" * 64, "6" * 64)],
        ),
        (
            lambda now: now["patches"].pop() and now["spec"].update(version="2"),
            [("spec", "version", "1", "2"), ("patch", "b", "2" * 64, "not in the series")],
        ),
        (
            lambda now: now["patches"].reverse() or now["spec"].update(version="2"),
            [("spec", "version", "1", "2"), ("series", "order of the patches", "a b", "b a")],
        ),
        (
            lambda now: now["patches"].append({"name": "c", "sha256": "7" * 64}),
            [
                ("patch", "c", "not in the series", "7" * 64),
                (
                    "version",
                    "the patches changed and the overlay's version did not",
                    "version 1 with the patches of the lock",
                    "version 1 with others",
                ),
            ],
        ),
    ],
)
def test_each_input_is_named(
    change: Callable[[dict[str, Any]], object], drifts: list[tuple[str, str, str, str]]
) -> None:
    found = find_drift(lock(), changed(change), [a_base()])
    assert [(drift.kind, drift.where, drift.locked, drift.found) for drift in found] == drifts


def test_a_base_is_another_one_or_none() -> None:
    (other,) = find_drift(lock(), INPUTS, [a_base("sha256:" + "8" * 64)])
    assert (other.kind, other.where, other.locked, other.found) == (
        "base", "linux/arm64", BASE, "sha256:" + "8" * 64
    )  # fmt: skip
    (none,) = find_drift(lock(), INPUTS, [a_base(platform="linux/amd64")])
    assert (none.where, none.locked) == ("linux/amd64", "no image for this platform")


@pytest.mark.parametrize("empty", [Lock(), Lock(sections={"inputs": INPUTS}), lock(None), lock([])])
def test_a_lock_without_a_build_is_refused(empty: Lock) -> None:
    with pytest.raises(InvalidInput, match="records no build"):
        find_drift(empty, INPUTS, [])


@pytest.mark.parametrize(
    "damaged", [{}, {"spec": 3, "patches": 7}, {"patches": [1, {}], "spec": {"version": []}}]
)
def test_a_damaged_lock_drifts_and_does_not_fail(damaged: dict[str, Any]) -> None:
    kinds = {drift.kind for drift in find_drift(lock(damaged), INPUTS, [a_base()])}
    assert {"spec", "patch", "tool", "schema", "time", "template"} <= kinds


def test_patches_that_changed_under_one_version_are_named() -> None:
    other = changed(lambda now: now["patches"][0].update(sha256="9" * 64))
    assert unversioned_changes(lock(), other) == ["a"]
    assert unversioned_changes(lock(), INPUTS) == []
    other["spec"]["version"] = "2"
    assert unversioned_changes(lock(), other) == []


def test_the_error_names_all_of_them() -> None:
    found = find_drift(lock(), changed(lambda now: now.update(tool="9", schema=9)), [a_base()])
    error = drift_error(found, "overlays/demo.lock")
    assert error.exit_code == 6
    assert "2 inputs" in error.what
    assert str(found[1]) in str(error.details)
    assert error.facts["drift"] == [vars(one) for one in found]
