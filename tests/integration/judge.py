"""What a build must come to, worked out without overlay: by plain git, on the wheel's own sources."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.conftest import ROOT
from tests.integration.bases import SOURCES

OVERLAY = "glm53-flash-gb10"
MANIFEST = "usr/share/sglang-overlay/manifest.json"

Git = Callable[..., bytes]


@dataclass(frozen=True)
class Evaluation:
    """Files of the series as the repository names them, before and after."""

    before: Mapping[str, bytes]
    after: Mapping[str, bytes]


def repository_of(wheel: Path, directory: Path, git: Git) -> Path:
    """The wheel's sources as a git repository with one commit, as `python/sglang/…`."""
    directory.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if entry.filename.startswith("sglang/") and not entry.filename.endswith(".so"):
                path = Path(archive.extract(entry, directory / "python"))
                path.chmod(entry.external_attr >> 16 & 0o777)
    git("init", "--quiet", "--initial-branch=main", cwd=directory)
    git("add", "--all", "--force", cwd=directory)
    git("commit", "--quiet", "--message=sources", cwd=directory)
    return directory


def judge(repository: Path, git: Git, overlay: str = OVERLAY) -> Evaluation:
    """Apply the overlay's series with ``git apply``; the files it touches, before and after."""
    for patch in series_of(overlay):
        git("apply", "--index", "--whitespace=nowarn", str(patch), cwd=repository)
    changed = git("diff", "--cached", "--name-only", "--diff-filter=AM", cwd=repository).decode().split()
    dropped = ("test/", "docs/")
    after = {p: (repository / p).read_bytes() for p in changed if not p.startswith(dropped)}
    before = {
        path: git("show", f"HEAD:{path}", cwd=repository) for path in after if in_head(repository, path)
    }
    git("reset", "--quiet", "--hard", cwd=repository)
    return Evaluation(before, after)


def in_head(repository: Path, path: str) -> bool:
    command = ["git", "cat-file", "-e", f"HEAD:{path}"]
    return subprocess.run(command, cwd=repository, capture_output=True, check=False).returncode == 0


def series_of(overlay: str) -> list[Path]:
    """The overlay's patches in their order."""
    patches = yaml.safe_load((ROOT / "overlays" / f"{overlay}.yaml").read_text())["patches"]
    directory = ROOT / "patches" / patches["series"]
    lines = (directory / "series").read_text().splitlines()
    names = [name.removesuffix(".patch") for line in lines if (name := line.partition("#")[0].strip())]
    only, left_out = patches.get("only") or names, patches.get("except") or []
    return [directory / f"{name}.patch" for name in names if name in only and name not in left_out]


def in_image(path: str) -> str:
    """Where a file of the repository is in a base image of the tests."""
    return SOURCES + path.removeprefix("python")


def flattened(tar_path: Path) -> dict[str, tuple[object, ...]]:
    """Every file of an exported container: type, mode, owner, link and contents."""
    import hashlib

    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(tar_path) as tar:
        for entry in tar:
            file = tar.extractfile(entry) if entry.isfile() else None
            content = hashlib.sha256(file.read()).hexdigest() if file else ""
            facts = (entry.type, oct(entry.mode), entry.uid, entry.gid, entry.linkname, content)
            found[entry.name.rstrip("/")] = facts
    return found
