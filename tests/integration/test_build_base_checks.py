"""The base must be what the series was cut for, in the files it touches, and may differ elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Overlay, Run
from tests.integration.bases import Base, changed_base
from tests.integration.conftest import Registry
from tests.integration.judge import OVERLAY, Evaluation

TOUCHED = "python/sglang/srt/distributed/device_communicators/shm_broadcast.py"


def push(overlay: Overlay, base: str, wheel: Path, target: str) -> Run:
    return overlay("build", OVERLAY, "--base", base, "--wheel", wheel, "--push", target, "--json")


def test_one_changed_byte_in_a_file_to_be_patched_is_exit_5_and_nothing_is_pushed(
    prepared: Overlay,
    small_base: Base,
    evaluation: Evaluation,
    registry: Registry,
    skopeo: Callable[..., str],
    wheel: Callable[[str], Path],
) -> None:
    original = evaluation.before[TOUCHED]
    changed = original.replace(b"import", b"Import", 1)
    assert len(changed) == len(original)
    reference = changed_base(small_base, {TOUCHED: changed}, "one-byte").push(
        skopeo, registry.repository("base")
    )
    run = push(prepared, reference, wheel("0.5.20"), registry.repository("out") + ":new").check(5)
    said = run.out + run.err
    assert TOUCHED.removeprefix("python/") in said
    assert "Import" in said, "the difference is not shown"
    assert registry.tags("out") == []
    written = [
        line for line in registry.requests() if re.search(r'"(PUT|POST|PATCH) ', line) and "/out/" in line
    ]
    assert written == [], "the registry was written to"


@pytest.mark.parametrize(
    "path", ["python/sglang/version.py", "python/sglang/srt/added_by_the_image_maker.py"]
)
def test_a_difference_elsewhere_builds(
    path: str,
    prepared: Overlay,
    small_base: Base,
    evaluation: Evaluation,
    registry: Registry,
    skopeo: Callable[..., str],
    wheel: Callable[[str], Path],
) -> None:
    assert path not in evaluation.after
    base = changed_base(small_base, {path: b"# edited by the image's maker\n"}, "elsewhere")
    reference = base.push(skopeo, registry.repository("base"))
    push(prepared, reference, wheel("0.5.20"), registry.repository("out") + ":new").check()
    assert registry.tags("out") == ["new"]


def test_a_missing_file_to_be_patched_is_exit_5(
    prepared: Overlay,
    small_base: Base,
    registry: Registry,
    skopeo: Callable[..., str],
    wheel: Callable[[str], Path],
) -> None:
    directory, _, name = TOUCHED.rpartition("/")
    whiteout = {f"{directory}/.wh.{name}": b""}
    reference = changed_base(small_base, whiteout, "gone").push(skopeo, registry.repository("base"))
    run = push(prepared, reference, wheel("0.5.20"), registry.repository("out") + ":new").check(5)
    assert TOUCHED.removeprefix("python/") in run.out + run.err
    assert registry.tags("out") == []


def test_a_bare_tag_is_refused_with_the_command_that_pins_it(
    prepared: Overlay, small_base_pushed: str, wheel: Callable[[str], Path], registry: Registry
) -> None:
    tag = small_base_pushed.partition("@")[0] + ":small"
    run = push(prepared, tag, wheel("0.5.20"), registry.repository("out") + ":new")
    assert run.code in (1, 2)
    assert "overlay pin" in run.out + run.err
    assert registry.tags("out") == []
