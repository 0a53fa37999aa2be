"""``overlay base wheel`` takes the wheel that it is asked for, and no other."""

from __future__ import annotations

import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.conftest import Overlay

NAME = "sglang-0.5.99-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/__init__.py", b"")
        archive.writestr("sglang-0.5.99.dist-info/METADATA", b"Name: sglang\nVersion: 0.5.99\n\n")
    return path


@pytest.mark.parametrize("pinned", [True, False])
def test_a_wheel_at_hand_becomes_a_base(overlay: Overlay, wheel: Path, tmp_path: Path, pinned: bool) -> None:
    pin = ["--sha256", sha256(wheel.read_bytes()).hexdigest()] if pinned else []
    words = ("base", "wheel", "sglang==0.5.99", "--wheel", wheel, "--output", f"oci:{tmp_path / 'out'}")
    made = overlay(*words, *pin, "--json").check().json
    assert made["version"] == "0.5.99"
    assert made["reference"] == f"oci:{tmp_path / 'out'}@{made['digest']}"


@pytest.mark.parametrize(
    ("requirement", "digest", "code", "found"),
    [
        ("sglang==0.5.99", "ab" * 32, 1, "sha256 "),
        ("sglang==0.5.99", "zz", 2, "zz"),
        ("sglang==0.5.20", None, 2, NAME),
    ],
)
def test_another_wheel_than_asked_for_is_refused(
    overlay: Overlay, wheel: Path, tmp_path: Path, requirement: str, digest: str | None, code: int, found: str
) -> None:
    pin = ["--sha256", digest] if digest else []
    words = ("base", "wheel", requirement, "--wheel", wheel, "--output", f"oci:{tmp_path / 'out'}")
    error = overlay(*words, *pin, "--json").check(code).json["error"]
    assert error["found"].startswith(found)
    assert not (tmp_path / "out").exists()
