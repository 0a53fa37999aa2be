"""Is a build the same a second time: two builds in memory, and the lock's, compared field by field."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.build.pipeline import Baked, Built, image_record
from builder.errors import NotReproducible
from builder.oci.model import sha256_digest
from builder.project.lock import Lock


@dataclass(frozen=True)
class Difference:
    """A field in which two builds differ: of the manifest, the config, or a file of the layer."""

    platform: str
    where: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.platform}: {self.where}: {self.first} and {self.second}"


def compare_builds(first: Built, second: Built) -> list[Difference]:
    """Every field in which two builds differ, from the most telling to what only follows from it."""
    found = [
        difference
        for a, b in zip(first.images, second.images, strict=True)
        if a.image.manifest.data != b.image.manifest.data
        for difference in _image_differences(a, b)
    ]
    if not found and first.digest != second.digest:
        found.append(Difference("all", "index", first.digest, second.digest))
    return found


def compare_with_lock(built: Built, lock: Lock) -> list[Difference]:
    """What a build has other than the lock recorded: digests of image, config, layer and manifest."""
    found = []
    for baked in built.images:
        platform = str(baked.plan.base.platform)
        recorded = lock.images.get(platform, {})
        for key, digest in image_record(baked).items():
            if key in recorded and recorded[key] != digest:
                found.append(Difference(platform, key, f"locked {recorded[key]}", f"built {digest}"))
    return found


def reproduction_error(differences: Sequence[Difference], what: str) -> NotReproducible:
    """The error for builds that differ; it shows every field."""
    first, *rest = differences
    return NotReproducible(
        what,
        where=f"{first.platform}: {first.where}",
        expected=first.first,
        found=first.second,
        details="\n".join(map(str, rest)) or None,
        hint="everything that decides an image should be in the spec, the series, the template or the base",
        facts={"differences": [vars(difference) for difference in differences]},
    )


def _image_differences(first: Baked, second: Baked) -> Iterator[Difference]:
    platform = str(first.plan.base.platform)
    parts = [
        ("layer", _layer_facts(first), _layer_facts(second)),
        ("config", _leaves(first.image.config), _leaves(second.image.config)),
        ("manifest", _leaves(first.image.manifest.data), _leaves(second.image.manifest.data)),
    ]
    for part, a, b in parts:
        for key in sorted(a.keys() | b.keys()):
            if a.get(key) != b.get(key):
                yield Difference(platform, f"{part} {key}", _said(a, key), _said(b, key))


def _said(facts: Mapping[str, Any], key: str) -> str:
    return str(facts[key]) if key in facts else "not there"


def _layer_facts(baked: Baked) -> dict[str, Any]:
    """Kind, mode, owner, time and bytes of every entry of the layer, by path and field."""
    facts: dict[str, Any] = {}
    plain = gzip.decompress(baked.layer.data)  # our own layer, just made: its size is known to be small
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            named = {
                "kind": entry.type.decode(),
                "mode": f"{entry.mode:04o}",
                "owner": f"{entry.uid}:{entry.gid}",
                "time": entry.mtime,
                "link": entry.linkname,
                "bytes": sha256_digest(file.read()) if file else "",
            }
            facts |= {f"/{entry.name}: {key}": value for key, value in named.items()}
    return facts


def _leaves(data: bytes) -> dict[str, Any]:
    return dict(_walk(json.loads(data), ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _walk(inner, f"{path}[{number}]")
    else:
        yield path, value
