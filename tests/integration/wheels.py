"""The release wheels of SGLang, as they lie on the package index."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

STORE = Path(__file__).resolve().parents[2] / "build" / "wheels"

# For CPython 3.11 on x86-64, whatever machine this is: only the sources in them matter.
TARGET = ("--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "--only-binary", ":all:")
SHA256 = {
    "0.5.16": "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713",
    "0.5.17": "575e38f5683624ded3b4bb267f637a098e5ed37d13a1d1ff5ea09bd781a04d16",
    "0.5.18": "e97b585dd2d5db2802599feba47c84cce972f5e1231a6816fef996200207b5cf",
    "0.5.19": "425e87377e725d03db8262382008f3fd9561a6cf5d82f485f8b9929f02ffe12b",
    "0.5.20": "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
    "0.5.21": "96c029f75dec99baa33a5db3d41b1bebefdd6bcfba3a2f7c807fe1cf49a87c20",
    "0.5.22": "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b",
    "0.5.23": "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
}


def release_wheel(version: str) -> Path:
    """A release's wheel, fetched once for all runs in this checkout, and checked each time."""
    directory = STORE / version
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / ".lock"):
        if not list(directory.glob("*.whl")):
            download(version, directory)
        (found,) = directory.glob("*.whl")
        assert hashlib.sha256(found.read_bytes()).hexdigest() == SHA256[version], found
        return found


def download(version: str, directory: Path) -> None:
    partial = directory / "partial"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        *TARGET,
        "--dest",
        str(partial),
    ]
    subprocess.run([*command, f"sglang=={version}"], check=True)
    (found,) = partial.glob("*.whl")
    found.rename(directory / found.name)
