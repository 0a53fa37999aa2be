"""What README shows of a build is what a build says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT, Overlay


def shown() -> list[str]:
    """The lines of README's picture of a build, below its command."""
    _, _, picture = (ROOT / "README.md").read_text().partition("$ overlay build ")
    return [line for line in picture.partition("```")[0].splitlines()[1:] if line]


def test_the_picture_of_a_build(prepared: Overlay, wheel: Callable[[str], Path]) -> None:
    words = ("--wheel", wheel("0.5.20"), "--output", "oci:.demo/base")
    made = prepared("base", "wheel", "sglang==0.5.20", *words)
    build = ("--platform", "linux/arm64", "--output", "oci:.demo/image")
    run = prepared("build", "glm53-flash-gb10", "--base", made.check().out.strip(), *build).check()
    said = [line for line in run.out.splitlines() if line and not line.startswith("lock ")]
    assert len(shown()) > 10
    for expected, found in zip(shown(), said, strict=True):
        start, ellipsis, _ = expected.partition("…")
        assert found.startswith(start) if ellipsis else found == expected
