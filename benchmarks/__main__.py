"""``make bench``: measure, write ``docs/benchmarks.md`` and ``.json``, fail if a promise is broken."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.applying import measure_applying
from benchmarks.builds import Base, Build, measure_builds
from benchmarks.fleet import measure_fleet
from benchmarks.growing import measure_growing
from benchmarks.growth import measure_growth
from benchmarks.judging import measure_judging
from benchmarks.layers import measure_layers
from benchmarks.measure import Sample
from benchmarks.readme import put_figures
from benchmarks.report import this_machine, write
from benchmarks.section import Section, at_most
from benchmarks.stage import Stage
from benchmarks.startup import measure_startup
from tests.conftest import ROOT


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="overlay-bench-") as temporary:
        stage = Stage.from_environment(Path(temporary))
        stage.prepare()
        heavy = stage.heavy_base("base", options.base_bytes)
        stage.push(heavy, "bench/base")
        base = Base.ask(stage, "bench/base", heavy.digest)
        startup = measure_startup(stage, options.runs * 3)
        builds = measure_builds(stage, base, options.runs)
        sections = [
            measure_fleet(stage, options.base_bytes, options.runs),
            measure_growth(stage, tuple(options.sizes), never_pulled(options.base_bytes, builds)),
            measure_judging(stage, options.runs, next(s for s in startup if s.name == "overlay list")),
            measure_growing(stage),
            measure_applying(stage.directory / "applying", options.runs),
            measure_layers(stage.directory / "layers", heavy.layout, heavy.digest, options.runs),
        ]
        took = time.monotonic() - start
        sections.append(
            Section(
                "This run",
                "All of the above, from nothing.",
                ["seconds"],
                [[f"{took:.0f}"]],
                {"seconds": round(took)},
                [at_most("`make bench` itself", took, 600, "s")],
            )
        )
        version = stage.docker_run("version", "--format", "{{.Server.Version}}").out.strip()
        kept = write(options.output, this_machine(version), base.size, builds, startup, sections)
    if options.output == ROOT / "docs":
        put_figures(ROOT / "README.md", options.output / "benchmarks.json")
    for promise in kept:
        print(f"{'holds ' if promise.kept else 'BROKEN'}  {promise.says}: {promise.found} ({promise.bound})")
    return 0 if all(promise.kept for promise in kept) else 1


def never_pulled(size: int, builds: Sequence[Build]) -> dict[tuple[int, str], Sample]:
    """What the main job measured of docker without the base, for the base's size: the median of each tool."""
    return {
        (size, build.tool): sorted(build.series.samples, key=lambda sample: sample.seconds)[
            len(build.series.samples) // 2
        ]
        for build in builds
        if build.situation == "never pulled"
    }


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="of each way of building")
    parser.add_argument("--base-bytes", type=int, default=1_000_000_000, help="filler in the base")
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[100_000_000, 1_000_000_000, 4_000_000_000],
        help="filler in the bases by which growth is measured, in bytes",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs", help="where the report goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
