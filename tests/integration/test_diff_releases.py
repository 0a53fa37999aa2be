"""``overlay diff`` on SGLang's own releases: the verdicts that docs/retirement.md defends, and in time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, Overlay
from tests.integration.bases import Base

pytestmark = pytest.mark.integration

DOCUMENT = ROOT / "docs" / "retirement.md"
CACHE = ROOT / "build" / "releases-cache"


def documented() -> dict[str, tuple[list[str], dict[str, list[str]]]]:
    """Releases and verdicts by patch, for every overlay that the document has a table of."""
    found: dict[str, tuple[list[str], dict[str, list[str]]]] = {}
    for section in re.split(r"^### ", DOCUMENT.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name = section.split(",")[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()
                if line.startswith("|")]  # fmt: skip
        found[name] = (rows[0][1:], {row[0]: row[1:] for row in rows[2:]})
    return found


TABLES = documented()


@pytest.fixture
def cached(overlay: Overlay) -> Overlay:
    """The command with a cache that outlives the run: eight wheels are 200 MB."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return overlay.with_environment(OVERLAY_CACHE=str(CACHE))


@pytest.mark.parametrize("name", TABLES)
def test_verdicts_are_those_that_the_document_defends(cached: Overlay, name: str) -> None:
    releases, verdicts = TABLES[name]
    options = [word for release in releases for word in ("--upstream", release)]
    report = cached("diff", name, *options, "--json", timeout=600).check().json["reports"][0]
    seen: dict[str, list[str]] = {}
    for evaluation in report["judgements"]:
        seen.setdefault(evaluation["patch"], []).append(evaluation["verdict"])
        assert evaluation["evidence"]["behaviour"] is not None
    assert seen == verdicts
    for evaluation in report["judgements"]:
        if evaluation["retirable"]:
            assert evaluation["evidence"]["history"]["release"] in releases


@pytest.mark.parametrize("name", ["glm53-flash-gb10", "dsv4-flash-gb10"])
def test_all_releases_end_without_unknown(cached: Overlay, name: str) -> None:
    report = cached("diff", name, "--upstream", "all", "--json", timeout=600).check().json["reports"][0]
    assert [target["name"] for target in report["targets"]] == TABLES[name][0]
    assert "unknown" not in {evaluation["verdict"] for evaluation in report["judgements"]}


def test_dflash_residual_is_retired_at_its_release(cached: Overlay, tmp_path: Path) -> None:
    done = cached("diff", "glm53-flash-dev", "--retire", timeout=300).check()
    assert "retired dflash-residual-none" in done.out
    patch = cached.directory / "patches/retired/v0.5.20-dev/dflash-residual-none.patch"
    assert (
        "Applied-Upstream: v0.5.20, https://github.com/sgl-project/sglang/pull/36755\n" in patch.read_text()
    )
    again = cached("diff", "glm53-flash-dev", "--retire", timeout=300).check()
    assert "nothing to retire" in again.out


def test_one_overlay_on_one_release_takes_at_most_sixty_times_what_a_list_takes(
    cached: Overlay, tmp_path: Path
) -> None:
    """Sources are in the cache; what probes said, and what the text says, is not. In the processor's time."""
    cached("diff", "glm53-flash-gb10", "--upstream", "v0.5.23", timeout=600).check()
    fresh = tmp_path / "cache"
    fresh.mkdir()
    for path in CACHE.iterdir():
        if path.name not in ("probes", "evidence"):
            (fresh / path.name).symlink_to(path)
    asked = cached.with_environment(OVERLAY_CACHE=str(fresh))

    def worked(*arguments: str) -> float:
        before = os.times()
        asked.as_started(*arguments, timeout=600).check()
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert worked("diff", "glm53-flash-gb10", "--upstream", "v0.5.23") < 60 * worked("list")


def test_rebase_names_exactly_the_patches_that_need_a_person(cached: Overlay, tmp_path: Path) -> None:
    for release in ("v0.5.21", "v0.5.22"):
        work = tmp_path / release
        options = ("--onto", release, "--as", "moved", "--worktree", work, "--json")
        error = cached("rebase", "glm53-flash-gb10", *options, timeout=600).check(3).json["error"]
        assert (error["patch"], error["later"]) == ("tilelang-fp8-kv-cuda", ["mamba-cache-for-requests"])
        assert not (cached.directory / "patches" / release).exists()
        cached("rebase", "glm53-flash-gb10", "--abort", "--worktree", work).check()


def test_source_in_an_image_and_two_images(cached: Overlay, small_base: Base, tmp_path: Path) -> None:
    image = ("--image", small_base.reference)
    report = cached("diff", "glm53-flash-gb10", *image, "--json", timeout=600).check().json["reports"][0]
    assert [target["source"] for target in report["targets"]] == ["image"]
    assert {evaluation["verdict"] for evaluation in report["judgements"]} == {"carry"}
    built = []
    for name, dropped in (("all", ""), ("fewer", "  except: [mamba-cache-for-requests]\n")):
        spec = cached.directory / "overlays/glm53-flash-gb10.yaml"
        spec.write_text(spec.read_text().replace("  series: v0.5.20\n", f"  series: v0.5.20\n{dropped}"))
        output = tmp_path / name
        options = ("--base", small_base.reference, "--output", f"oci:{output}", "--complete")
        cached("build", "glm53-flash-gb10", *options, timeout=600).check()
        built.append(f"oci:{output}")
    trees = [f"image:{place}" for place in (small_base.reference, *built)]
    only = ("--only", "mamba-cache-for-requests", "--only", "shm-broadcast-host-ip")
    probes = cached("probe", *trees, *only, "--json", timeout=600).check().json["probes"]
    states = {probe["name"]: [probe["answers"][tree]["state"] for tree in trees] for probe in probes}
    assert states == {
        "mamba-cache-for-requests": ["defect", "fixed", "defect"],
        "shm-broadcast-host-ip": ["defect", "fixed", "fixed"],
    }
    difference = cached("diff", *built, "--json", timeout=600).check().json
    assert difference["patches"] == {"mamba-cache-for-requests": "only in the first"}
    assert difference["files"] == {"python/sglang/srt/mem_cache/kv_cache_configurator.py": "differs"}
