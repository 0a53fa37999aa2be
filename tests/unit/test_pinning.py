"""What a pin in the lock stands for, and when it is taken."""

from __future__ import annotations

from typing import Any

import pytest

from builder.cli.subject import is_in_engine
from builder.errors import InvalidInput
from builder.oci.model import OCI_INDEX, OCI_MANIFEST, Platform
from builder.project.lock import Lock
from builder.project.pin import Pin, PinnedImage, pinned
from builder.project.spec import BaseSpec

INDEX, CHILD, CONFIG = (f"sha256:{digit * 64}" for digit in "123")
TAG = "docker.io/lmsysorg/sglang:v0.5.20"
PIN = Pin(TAG, INDEX, OCI_INDEX, {Platform("linux", "arm64"): PinnedImage(CHILD, CONFIG)})
LOCK = Lock(pins={TAG: PIN.as_json()})


def spec(**base: Any) -> BaseSpec:
    return BaseSpec(image="docker.io/lmsysorg/sglang", **base)


def test_a_pin_reads_back_as_it_was_written() -> None:
    assert Pin.from_json(TAG, PIN.as_json()) == PIN


def test_an_index_of_one_platform_is_an_index() -> None:
    assert PIN.is_index
    single = Pin(TAG, CHILD, OCI_MANIFEST, {Platform("linux", "arm64"): PinnedImage(CHILD, CONFIG)})
    assert not single.is_index


@pytest.mark.parametrize(
    "damage",
    [
        {"digest": "sha256:short"},
        {"digest": 5},
        {"platforms": []},
        {"platforms": {"linux/arm64": "x"}},
        {"platforms": {"linux/arm64": {"digest": "x", "config": CONFIG}}},
        {"platforms": {"nonsense": {"digest": CHILD, "config": CONFIG}}},
    ],
)
def test_a_damaged_pin_is_refused_and_names_itself(damage: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        Pin.from_json(TAG, PIN.as_json() | damage)
    assert TAG in str(refused.value.where) or "nonsense" in str(refused.value.where)


def test_a_tag_is_held_to_what_it_was_when_it_was_pinned() -> None:
    assert pinned("lmsysorg/sglang:v0.5.20", spec(), LOCK) == f"{TAG}@{INDEX}"


@pytest.mark.parametrize("text", [f"{TAG}@{CHILD}", CHILD, "lmsysorg/sglang:other"])
def test_what_has_a_digest_or_no_pin_stays_as_it_is(text: str) -> None:
    assert pinned(text, spec(), LOCK) == text


def test_a_spec_without_a_base_takes_the_only_pin_of_its_image() -> None:
    assert pinned(None, spec(), LOCK) == INDEX
    assert pinned(None, spec(index=CHILD), LOCK) is None
    other = {"docker.io/lmsysorg/sglang:other": PIN.as_json()}
    assert pinned(None, spec(), Lock(pins=dict(LOCK.pins) | other)) is None, (
        "which of two is not for us to say"
    )


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("sglang-rank0", True),
        ("container:with/slash", True),
        ("engine:sglang:tag", True),
        ("oci:image", False),
        ("lmsysorg/sglang", False),
        ("sglang:v0.5.20", False),
        (f"sglang@{CHILD}", False),
    ],
)
def test_what_the_command_line_means(text: str, engine: bool) -> None:
    assert is_in_engine(text) is engine
