"""``overlay list``"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from builder.cli.options import root_option
from builder.cli.output import json_option, print_json, print_table
from builder.patch.series import read_series_file
from builder.project.project import find_root
from builder.project.spec import read_spec


@click.command("list", epilog="Example: overlay list --json")
@root_option
@json_option
def command(root: Path | None, as_json: bool) -> None:
    """List the overlays: name, version, upstream release, patches and hardware."""
    project = find_root(root)
    rows: list[dict[str, Any]] = []
    for name in project.names():
        spec = read_spec(project.spec_path(name))
        listed = read_series_file(project.patches / spec.patches.series)
        taken = [p for p in listed if (not spec.patches.only or p in spec.patches.only)]
        taken = [p for p in taken if p not in spec.patches.leave_out]
        rows.append(
            {
                "name": spec.name,
                "version": spec.version,
                "release": spec.upstream.release,
                "patches": len(taken),
                "hardware": list(spec.hardware),
                "summary": spec.summary,
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        ("NAME", "VERSION", "UPSTREAM", "PATCHES", "HARDWARE", "SUMMARY"),
        [
            (r["name"], r["version"], r["release"], str(r["patches"]), " ".join(r["hardware"]), r["summary"])
            for r in rows
        ],
    )
