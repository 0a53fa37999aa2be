"""The SGLang releases that can be named by version alone, each pinned to its wheel and, where known, commit.

A release is added with its next overlay, or when ``overlay diff`` is to look at it.
"""

from __future__ import annotations

from difflib import get_close_matches

from builder.errors import InvalidInput
from builder.spec import UpstreamSpec, Wheel

# release: (commit of the repository, SHA-256 of the wheel for CPython 3.11 on linux/amd64)
_PINS: dict[str, tuple[str | None, str]] = {
    "v0.5.16": (
        "fdebc938f7f4d16fe6b9f55dcd9a767cf0899ea1",
        "d5f345a18953dd35df568ac56bdcb7f5ee910ab39efea4469b714556d1070713",
    ),
    "v0.5.17": (
        "29481685462732237d80d86076d6563e1f658102",
        "575e38f5683624ded3b4bb267f637a098e5ed37d13a1d1ff5ea09bd781a04d16",
    ),
    "v0.5.18": (
        "71de97b264b04dcd514cf904003028aefe9775c8",
        "e97b585dd2d5db2802599feba47c84cce972f5e1231a6816fef996200207b5cf",
    ),
    "v0.5.19": (
        "0bcd822377da7b5718e674eaf9c870d349424dd1",
        "425e87377e725d03db8262382008f3fd9561a6cf5d82f485f8b9929f02ffe12b",
    ),
    "v0.5.20": (
        "94602c9c2b7cbdb8efd5c52802dac6a1c180089e",
        "1573527042f4f6b4ead838302818595fc77fdc611dbcc2e40cd150fbc8f8513c",
    ),
    "v0.5.21": (
        "e00930c5489053f26d86b179cee0d087f846acbb",
        "96c029f75dec99baa33a5db3d41b1bebefdd6bcfba3a2f7c807fe1cf49a87c20",
    ),
    "v0.5.22": (None, "cc9a0f15bd8f877a0584fdb7a1702240177a1f1cc8d17c978715161717b9037b"),
    "v0.5.23": (None, "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937"),
}


def release_upstream(release: str) -> UpstreamSpec:
    """The pin of a release.

    Args:
        release: such as ``v0.5.20``.

    Raises:
        InvalidInput: the release is not in the table, with the nearest one.
    """
    if release not in _PINS:
        near = get_close_matches(release, _PINS, n=1)
        raise InvalidInput(
            "there is no pin for this release",
            where="builder/releases.py",
            expected=", ".join(_PINS),
            found=release,
            hint=f"did you mean {near[0]}? Otherwise name a checkout, or REPOSITORY@REVISION"
            if near
            else "name a checkout, or REPOSITORY@REVISION",
        )
    commit, sha256 = _PINS[release]
    wheel = Wheel(requirement=f"sglang=={release.removeprefix('v')}", sha256=sha256)
    return UpstreamSpec(release=release, commit=commit, wheel=wheel)
