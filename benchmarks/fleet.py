"""Ten overlays for two platforms with ``overlay build --all``, against one of them with ``overlay build``."""

from __future__ import annotations

import json
import urllib.request

from benchmarks.builds import forget_builds
from benchmarks.measure import Sample, Series, repeat
from benchmarks.section import Section, at_most
from benchmarks.stage import Stage
from tests.conftest import Overlay, console_script
from tests.integration.fleet import FleetBase, write_fleet

OVERLAYS = 10
JOBS = 4
INDEX = "application/vnd.oci.image.index.v1+json"


def measure_fleet(stage: Stage, base_bytes: int, runs: int) -> Section:
    """On a locked base of ``base_bytes`` for amd64 and arm64; each run pushes to a repository of its own."""
    overlay = Overlay(console_script(), stage.project, {})
    kept = {path.name: path.read_bytes() for path in (stage.project / "overlays").iterdir()}
    base = push_pair(stage, base_bytes)
    names = write_fleet(overlay, base, OVERLAYS)
    platforms = [word for platform in base.platforms for word in ("--platform", platform)]
    stage.overlay("build", "--all", "--push", f"{stage.registry}/bench/fleet-warm")  # writes the locks

    def one(number: int) -> Sample:
        forget_builds(stage)
        return stage.overlay(
            "build", names[0], *platforms, "--push", f"{stage.registry}/bench/fleet-one-{number}"
        )

    def everything(number: int) -> Sample:
        target = f"{stage.registry}/bench/fleet-all-{number}"
        return stage.overlay("build", "--all", "-j", str(JOBS), "--push", target)

    def again(number: int) -> Sample:
        return stage.overlay(
            "build", "--all", "-j", str(JOBS), "--push", f"{stage.registry}/bench/fleet-all-0"
        )

    figures = {
        "`overlay build`, one overlay": repeat("one", runs, one),
        f"`overlay build --all`, {OVERLAYS} overlays": repeat("all", runs, everything),
        "the same again, nothing missing": repeat("again", runs, again),
    }
    for path in (stage.project / "overlays").iterdir():
        path.unlink()
    for name, data in kept.items():
        (stage.project / "overlays" / name).write_bytes(data)
    first, second, _ = figures.values()
    return Section(
        "Many overlays",
        f"For two platforms each, on one locked base of {base_bytes / 1e9:.1f} GB, pushed with attestations; "
        f"-j {JOBS}.",
        ["", "median s", "peak MB"],
        [[name, f"{s.seconds:.2f}", f"{s.peak_bytes / 1e6:.0f}"] for name, s in figures.items()],
        {name: series.as_json() for name, series in figures.items()},
        [
            at_most(f"{OVERLAYS} overlays, as times of one", ratio(second, first), 3, "times"),
            at_most(f"peak memory of {OVERLAYS} overlays", second.peak_bytes / 1e6, 250, "MB"),
        ],
    )


def ratio(one: Series, other: Series) -> float:
    return one.seconds / other.seconds


def push_pair(stage: Stage, size: int) -> FleetBase:
    """A base for two platforms, as an index in the registry."""
    platforms, children = {}, []
    for architecture in ("amd64", "arm64"):
        heavy = stage.heavy_base(f"fleet-{architecture}", size, architecture=architecture)
        stage.push(heavy, "bench/fleet-base")
        platforms[f"linux/{architecture}"] = heavy.digest
        (entry,) = [one for one in heavy.layout.entries() if one["digest"] == heavy.digest]
        described = {key: entry[key] for key in ("mediaType", "digest", "size")}
        children.append({**described, "platform": {"os": "linux", "architecture": architecture}})
    document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": children}
    request = urllib.request.Request(
        f"http://{stage.registry}/v2/bench/fleet-base/manifests/pair",
        data=json.dumps(document).encode(),
        headers={"Content-Type": INDEX},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        digest = answer.headers["Docker-Content-Digest"]
    return FleetBase(f"{stage.registry}/bench/fleet-base", digest, platforms)
