"""What patches and specs demand of a base, and what a base says of itself that is not the pin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from builder.errors import InvalidInput
from builder.project.requirements import parse_requirements
from builder.retire.dependency import Pin, clashes
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject, overlay, write_root
from tests.projects.image import PACKAGES, SYSTEM, TREE, ImageProject, Layout, layer
from tests.projects.series import SeriesProject, rules, workshop

__all__ = ["workshop"]

CUDA = "usr/local/cuda-13.0/version.json"


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    return ImageProject.create(tmp_path)


def distribution(name: str, version: str) -> dict[str, bytes]:
    said = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    return {f"{PACKAGES}/{name.replace('-', '_')}-{version}.dist-info/METADATA": said}


def base(
    world: ImageProject,
    files: Mapping[str, bytes] = {},
    *,
    demo: bytes = P0_BEFORE,
    environment: tuple[str, ...] = (),
    labels: Mapping[str, str] = {},
    system: Mapping[str, bytes] = SYSTEM,
) -> Layout:
    """A base with more in it; ``/usr/local/cuda`` is the link that it is in NVIDIA's images."""
    layout = Layout.create(world.directory / f"base{len(list(world.directory.iterdir()))}")
    settings = {
        "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *environment],
        "WorkingDir": "/",
        "Labels": dict(labels),
    }
    layers = [layer(system), layer({f"{TREE}/sglang/demo.py": demo, **files}), layer(_link)]
    layout.put_image(
        layers,
        config={
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in layers]},
            "history": [{"created_by": "test"} for _ in layers],
        },
    )
    return layout


def _link(tar: Any) -> None:
    import tarfile

    entry = tarfile.TarInfo("usr/local/cuda")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/usr/local/cuda-13.0"
    tar.addfile(entry)


def requires(world: ImageProject, *values: str) -> None:
    path = world.root / "patches/one/p0.patch"
    lines = "".join(f"Overlay-Requires: {value}\n" for value in values)
    path.write_bytes(path.read_bytes().replace(b"Upstream-Status", lines.encode() + b"Upstream-Status"))


def dry(world: ImageProject, layout: Layout) -> dict[str, Any]:
    run = world.overlay("build", "demo", "--base", layout.reference, "--dry-run", "--json")
    run.check(0)
    value: dict[str, Any] = json.loads(run.out)
    return value


# --- what is demanded ---------------------------------------------------------------------------------------


def test_what_is_demanded_and_there_is_recorded_and_shown(world: ImageProject) -> None:
    requires(world, "tilelang>=0.1.10,<0.1.13", "Flash_Infer.Python, cuda>=13.0")
    world.write_spec(more='requires: {cuda: ">=13", tilelang: "!=0.1.11"}\nhardware: ["12.1"]\n')
    there = distribution("tilelang", "0.1.12+cu130.gitabc") | distribution("flash-infer-python", "0.6.1rc1")
    layout = base(world, there, environment=("CUDA_VERSION=13.0.1",))
    world.overlay(*world.build(layout.reference)).check(0)
    out = f"oci:{world.directory / 'out'}:new"
    shown = world.overlay("inspect", out, "--full")
    shown.check(0)
    assert "cuda>=13.0" in shown.out
    assert "tilelang<0.1.13,>=0.1.10 (p0): the base has 0.1.12+cu130.gitabc" in shown.out
    facts = json.loads(world.overlay("inspect", out, "--full", "--json").out)
    manifest = facts["contents"]
    assert manifest["hardware"] == ["12.1"]
    assert manifest["requires"] == [
        {"name": "cuda", "specifier": ">=13", "by": "spec", "found": "13.0.1"},
        {"name": "tilelang", "specifier": "!=0.1.11", "by": "spec", "found": "0.1.12+cu130.gitabc"},
        {"name": "tilelang", "specifier": "<0.1.13,>=0.1.10", "by": "p0", "found": "0.1.12+cu130.gitabc"},
        {"name": "flash-infer-python", "specifier": "", "by": "p0", "found": "0.6.1rc1"},
        {"name": "cuda", "specifier": ">=13.0", "by": "p0", "found": "13.0.1"},
    ]
    assert facts["requires"].startswith("cuda>=13 tilelang!=0.1.11 ")
    world.overlay("verify", out).check(0)
    world.overlay(*world.build(layout.reference, "--check", "--locked", to="again")).check(0)


@pytest.mark.parametrize(
    ("value", "files", "found"),
    [
        ("tilelang>=0.1.10,<0.1.13", distribution("tilelang", "0.1.9"), "tilelang 0.1.9"),
        ("tilelang>=0.1.10,<0.1.13", distribution("tilelang", "0.1.13"), "tilelang 0.1.13"),
        ("tilelang", {}, "tilelang is not installed"),
        ("tilelang==0.1.9", distribution("tilelang", "abc"), "tilelang abc"),
        ("cuda>=13.0", {}, "no CUDA version"),
        ("cuda>=13.1", {CUDA: b'{"cuda": {"name": "CUDA SDK", "version": "13.0.20250819"}}'}, "cuda 13.0"),
        ("cuda>=13.0", {CUDA: b"[" * 3000}, "no CUDA version"),
    ],
)
def test_what_the_base_lacks_is_exit_5_with_found_and_wanted(
    world: ImageProject, value: str, files: Mapping[str, bytes], found: str
) -> None:
    requires(world, value)
    run = world.overlay(*world.build(base(world, files).reference, "--json"))
    run.check(5)
    error = json.loads(run.out)["error"]
    assert error["found"].startswith(found)
    assert "(patch p0)" in error["expected"]
    assert [one["by"] for one in error["requires"]] == ["p0"]
    assert not (world.directory / "out").exists()


@pytest.mark.parametrize(("value", "code"), [("tilelang>=0.1.10", 5), ("tilelang>=0.1.9", 0)])
def test_of_two_installations_of_one_name_each_must_do(world: ImageProject, value: str, code: int) -> None:
    requires(world, value)
    two = distribution("tilelang", "0.1.9") | distribution("tilelang", "0.1.12")
    ran = world.overlay("build", "demo", "--base", base(world, two).reference, "--dry-run")
    assert ran.code == code, ran.err
    assert code == 0 or "tilelang 0.1.12 and 0.1.9" in ran.err


def test_the_toolkit_that_is_there_counts_where_the_environment_says_another(world: ImageProject) -> None:
    requires(world, "cuda>=13.0")
    there = {CUDA: b'{"cuda": {"version": "13.0.20250819"}}'}
    facts = dry(world, base(world, there, environment=("CUDA_VERSION=12.9.1",)))
    (image,) = facts["images"]
    assert image["manifest"]["requires"][0]["found"] == "13.0.20250819"
    assert any("CUDA_VERSION=12.9.1" in text for text in image["warnings"])


def test_a_lock_that_says_less_or_lies_is_not_believed(world: ImageProject) -> None:
    layout = base(world, distribution("tilelang", "0.1.9"))
    world.overlay(*world.build(layout.reference)).check(0)
    requires(world, "tilelang>=0.1.10")
    world.overlay(*world.build(layout.reference, to="two")).check(5)
    lock = json.loads(world.lock.read_text())
    (entry,) = lock["bases"].values()
    entry["installed"] = {"tilelang": "0.1.9"}
    world.lock.write_text(json.dumps(lock))
    world.overlay(*world.build(layout.reference, to="two")).check(5)


@pytest.mark.parametrize(
    "text", ["", "tilelang>=", "tilelang[x]>=1", "a>1; python_version<'3'", "a @ https://x/y", ">=1", "a b"]
)
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_requirements(text, where="here")
    assert caught.value.expected


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ("requires: [tilelang>=0.1.10, cuda>=13.0]\n", 0, ""),
        ("requires: {tilelang: nonsense}\n", 1, "PEP 440"),
        ("requires: ['tilelang>=']\n", 1, "not a requirement"),
        ("requires: {'-x': '>1'}\n", 1, "a distribution's name"),
        ("requires: 3\n", 1, "keys with values"),
    ],
)
def test_requires_of_a_spec_is_a_table_or_a_list(
    world: ImageProject, more: str, code: int, said: str
) -> None:
    world.write_spec(more=more)
    run = world.overlay("show", "demo")
    run.check(code)
    assert said in run.err


# --- hardware -----------------------------------------------------------------------------------------------


def test_a_patch_that_was_not_written_for_the_overlays_hardware_is_said(world: ImageProject) -> None:
    path = world.root / "patches/one/p0.patch"
    path.write_bytes(path.read_bytes().replace(b"Upstream-Status", b"Overlay-Hardware: 9.0\nUpstream-Status"))
    world.write_spec(more='hardware: ["12.1"]\n')
    (image,) = dry(world, base(world))["images"]
    assert "patch p0 was written for 9.0, not for 12.1" in image["warnings"]
    run = world.overlay("patch", "lint", "one", "--offline", "--json")
    (finding,) = [one for one in json.loads(run.out)["findings"] if one["rule"] == "hardware"]
    assert (finding["expected"], finding["found"]) == ("12.1", "9.0")
    world.write_spec(more='hardware: ["9.0"]\n')
    (image,) = dry(world, base(world, demo=P0_BEFORE))["images"]
    assert not any("written for" in text for text in image["warnings"])


def test_lint_reads_requirements(workshop: SeriesProject) -> None:
    bad = "Upstream-Status: Pending\nOverlay-Requires: cuda>=\nOverlay-Requires: torch>=2.9"
    workshop.add("one", ("python/sglang/demo.py", "b = 2", "b = 3"), trailers=bad)
    assert rules(json.loads(workshop("patch", "lint", "--json").out)["findings"]) == ["requires"]


# --- the base's own word ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.5.21", "calls itself 0.5.21, and the overlay pins v0.5.20"),
        ("0.5.20+g1a2b3c4d5", "built of commit 1a2b3c4d5"),
        ("0.5.20.post1", "calls itself 0.5.20.post1"),
        ("0.5.21.dev3+gabcdef012", "calls itself 0.5.21.dev3+gabcdef012"),
        ("0.5.20", ""),
        ("0.5.20+cu130", ""),
        ("strange", ""),
    ],
)
def test_an_installed_version_of_another_release_is_a_note(
    world: ImageProject, version: str, said: str
) -> None:
    world.spec.write_text(world.spec.read_text().replace("release: v1,", "release: v0.5.20,"))
    name = f"{PACKAGES}/sglang-{version}.dist-info"
    old = f"{PACKAGES}/sglang-0.5.20.dist-info"
    system = {
        path.replace(old, name): data.replace(b": 0.5.20\n", f": {version}\n".encode())
        for path, data in SYSTEM.items()
    }
    layout = base(world, system=system)
    (image,) = dry(world, layout)["images"]
    assert [said in note for note in image["manifest"]["base"]["notes"]] == ([True] if said else [])
    if said:
        run = world.overlay(*world.build(layout.reference))
        run.check(0)
        assert said in run.err
        assert said in world.overlay("inspect", f"oci:{world.directory / 'out'}:new").out


def test_a_revision_label_of_another_commit_is_a_note(world: ImageProject) -> None:
    world.spec.write_text(world.spec.read_text().replace("release: v1,", "release: v0.5.20,"))
    revision = "org.opencontainers.image.revision"
    (image,) = dry(world, base(world, labels={revision: "b" * 40}))["images"]
    (note,) = image["manifest"]["base"]["notes"]
    assert "b" * 40 in note
    assert note in image["warnings"]


def test_a_revision_label_of_the_pin_is_none(world: ImageProject) -> None:
    world.spec.write_text(world.spec.read_text().replace("release: v1,", "release: v0.5.20,"))
    labels = {"org.opencontainers.image.revision": world.commit[:12]}
    assert dry(world, base(world, labels=labels))["images"][0]["manifest"]["base"]["notes"] == []


# --- bases that nearly are what they should be --------------------------------------------------------------


@pytest.mark.parametrize(
    ("demo", "said", "kind"),
    [
        (P0_AFTER, "the base has it already", "patched"),
        (P0_BEFORE.replace(b"\n", b"\r\n"), "line endings (CRLF)", "line-endings"),
        (P0_BEFORE.rstrip(b"\n"), "the newline at its end", "last-newline"),
        (P0_BEFORE + b"\n", "the newline at its end", "last-newline"),
        (P0_BEFORE.replace(b"a = 1", b"a = 7"), "not what the series was made for", "other"),
    ],
)
def test_a_base_that_nearly_is_the_pin_is_told_from_another(
    world: ImageProject, demo: bytes, said: str, kind: str
) -> None:
    run = world.overlay(*world.build(base(world, demo=demo).reference, "--json"))
    run.check(5)
    error = json.loads(run.out)["error"]
    assert said in error["what"]
    assert [file["kind"] for file in error["files"]] == [kind]
    assert ("overlay rebase" in error["hint"]) == (kind == "other")


def test_a_base_that_is_an_overlays_own_image_names_the_base_below(world: ImageProject) -> None:
    layout = base(world)
    world.overlay(*world.build(layout.reference, "--complete")).check(0)
    built = json.loads((world.directory / "out/index.json").read_text())["manifests"][0]["digest"]
    run = world.overlay(*world.build(f"oci:{world.directory / 'out'}@{built}", "--json", to="two"))
    run.check(5)
    error = json.loads(run.out)["error"]
    assert "an image that holds the overlay demo already" in error["what"]
    assert layout.entry() in error["hint"]


# --- other releases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "pinned", "clash"),
    [
        (">=0.1.10,<0.1.13", "==0.1.14", True),
        (">=0.1.10,<0.1.13", "==0.1.12", False),
        ("<0.1.13", ">=0.1.13", True),
        ("<=0.1.13", ">=0.1.13", False),
        (">=2", "<2", True),
        (">=2", ">=1", False),
        ("==1.*", "==1.2", False),
        ("", "==1", False),
        (">=1", "nonsense", False),
    ],
)
def test_only_what_no_version_can_meet_is_a_clash(wanted: str, pinned: str, clash: bool) -> None:
    requirements = parse_requirements(f"tilelang{wanted}", where="here")
    assert bool(clashes(requirements, {"tilelang": Pin(pinned, "METADATA")})) == clash


def test_diff_and_rebase_look_at_what_the_release_asks_for(lab: HistoryProject, tmp_path: Path) -> None:
    metadata = "python/sglang.dist-info/METADATA"
    pin = lab.commit({DEMO: P0_BEFORE, metadata: b"Requires-Dist: tilelang==0.1.12\n"}, tag="v1.0.0")
    lab.probe("p0")
    patch = lab.patch("p0", pin, {DEMO: P0_AFTER}, "Overlay-Requires: tilelang>=0.1.10,<0.1.13")
    lab.commit({metadata: b"Requires-Dist: tilelang==0.1.14\n"}, tag="v1.1.0")
    root = write_root(lab, tmp_path / "root", pin, [patch])
    url = ("--upstream-url", str(lab.repository))
    done = overlay(lab, root, "diff", "demo", "--upstream", "v1.1.0", *url, "--json")
    (evaluation,) = json.loads(done.stdout)["reports"][0]["judgements"]
    assert evaluation["verdict"] == "carry"
    assert any("tilelang==0.1.14" in text for text in evaluation["contradictions"])
    done = overlay(lab, root, "rebase", "demo", "--onto", "v1.1.0", *url)
    assert done.returncode == 0, done.stderr
    assert "tilelang==0.1.14" in done.stderr


@pytest.fixture
def lab(tmp_path: Path) -> HistoryProject:
    return HistoryProject(tmp_path)
