"""Cases in which a plain method lies: a pin, a patch, a target, and what is true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from builder.patch.patch import Patch, parse_patch
from tests.projects.history import DEMO, P0_AFTER, P0_BEFORE, HistoryProject, mail

MOVED = "python/sglang/kernels/demo.py"


@dataclass(frozen=True)
class Case:
    """What to make, and the verdict that is right.

    Args:
        name: says what happens.
        make: makes it; the pin, the patch and the target.
        right: the verdict.
    """

    name: str
    make: Callable[[HistoryProject], tuple[str, Patch, str]]
    right: str

    @property
    def needed(self) -> bool:
        """Whether the target needs the patch, or what is left of it."""
        return self.right in ("carry", "partial", "rework")


def _simple(
    before: bytes, after: bytes, *upstream: dict[str, bytes | None], context: int = 3
) -> Callable[[HistoryProject], tuple[str, Patch, str]]:
    def make(lab: HistoryProject) -> tuple[str, Patch, str]:
        pin = lab.commit({DEMO: before}, tag="v1.0.0")
        lab.probe("p0", PROBE)
        patch = lab.patch("p0", pin, {DEMO: after})
        if context != 3:
            patched = lab.after(pin, patch)
            diff = lab.git("diff", "--full-index", f"-U{context}", pin, patched).encode() + b"\n"
            patch = parse_patch("p0", mail("p0", diff))
        for number, files in enumerate(upstream, 1):
            end = lab.commit(files, f"upstream {number}")
        return pin, patch, end

    return make


PROBE = f"""
from builder.probe.harness import absent, defect, fixed, unknown

def probe(tree):
    path = {MOVED!r} if {MOVED!r} in tree else {DEMO!r}
    if path not in tree:
        return unknown("the demo was not found")
    if b"def caller" in tree.read(path) and b"f()" not in tree.read(path):
        return absent("the caller asks no f", path + ":caller")
    found = {{}}
    try:
        exec(tree.read(path), found)
        value = found["f"]()
    except Exception as error:
        return defect(f"f() fails: {{error!r}}")
    return fixed(f"f() is {{value}}") if value == 4 else defect(f"f() is {{value}}, not 4")
"""

BODY = b"():\n    a = 1\n\n    b = 2\n    return a + b\n"
TWINS = b"def f" + BODY + b"\n\ndef g" + BODY
FIRST = TWINS.replace(b"b = 2", b"b = 3", 1)
SECOND = b"def f" + BODY + b"\n\ndef g" + BODY.replace(b"b = 2", b"b = 3")
ABOVE = b"def new" + BODY + b"\n\n" + TWINS
LONG = b"def f():\n    a = 1\n" + b"".join(b"    x%d = 0\n" % n for n in range(12)) + b"    b = 1\n"
LONG += b"    return a + b\n"
LONG_AFTER = LONG.replace(b"a = 1", b"a = 2").replace(b"b = 1", b"b = 2")
USES = b"class C:\n    pass\n\n\nC.three = 3\n\n\n" + P0_BEFORE
USES_AFTER = USES.replace(b"b = 2", b"b = C.three")
MANY = b"".join(b"\n\ndef k%d():\n    return %d\n" % (n, n) for n in range(10))
BEFORE_MANY, AFTER_MANY = P0_BEFORE + MANY, P0_AFTER + MANY
OTHER_WORDS = P0_BEFORE.replace(b"b = 2\n    return a + b", b"b = a + 1\n    return 2 * b")
WRAPPED = P0_BEFORE + b"\n\ndef f(f=f):\n    return f() + 1\n"
REFACTORED = b"import os\n\n\n" + P0_AFTER.replace(b"def f():", b"def f() -> int:")
CALLER = b"def caller():\n    return 4\n"
REDEFINED = P0_AFTER + b"\n\ndef f():\n    return 0\n"


def _p0(*upstream: dict[str, bytes | None]) -> Callable[[HistoryProject], tuple[str, Patch, str]]:
    return _simple(P0_BEFORE, P0_AFTER, *upstream)


def _twins(target: bytes) -> Callable[[HistoryProject], tuple[str, Patch, str]]:
    return _simple(TWINS, FIRST, {DEMO: target}, context=1)


def _many(*upstream: dict[str, bytes | None]) -> Callable[[HistoryProject], tuple[str, Patch, str]]:
    return _simple(BEFORE_MANY, AFTER_MANY, *upstream)


def _without(text: bytes, gone: bytes, instead: bytes = b"") -> dict[str, bytes | None]:
    return {DEMO: text.replace(gone, instead)}


CASES = [
    Case("needed, nothing changed around it", _p0({"n": b"1"}), "carry"),
    Case("merged as it is", _p0({DEMO: P0_AFTER}), "merged"),
    Case("merged with its file refactored around it", _p0({DEMO: REFACTORED}), "merged"),
    Case("merged in one commit with another change", _many(_without(AFTER_MANY, b"7\n", b"70\n")), "merged"),
    Case("fixed in other words", _p0({DEMO: OTHER_WORDS}), "merged"),
    Case("fixed elsewhere, still applies", _p0({DEMO: WRAPPED}), "merged"),
    Case("merged, still applies to the twin block", _twins(FIRST), "merged"),
    Case("only the twin block has the fix", _twins(SECOND), "carry"),
    Case("an equal block was put in above", _twins(ABOVE), "carry"),
    Case("one of two hunks merged", _simple(LONG, LONG_AFTER, _without(LONG, b"a = 1", b"a = 2")), "partial"),
    Case("merged and reverted", _p0({DEMO: P0_AFTER}, {DEMO: P0_BEFORE}), "carry"),
    Case("file moved, needed", _many({DEMO: None, MOVED: BEFORE_MANY}), "carry"),
    Case("file moved, merged", _many({DEMO: None, MOVED: AFTER_MANY}), "merged"),
    Case("what it uses is gone", _simple(USES, USES_AFTER, _without(USES, b"C.three = 3\n")), "rework"),
    Case("merged in text, the defect is back", _p0({DEMO: REDEFINED}), "rework"),
    Case("its lines changed, the defect is there", _p0(_without(P0_BEFORE, b"b = 2", b"b = 2.5")), "rework"),
    Case("what asked for it asks no more", _p0({DEMO: CALLER}), "obsolete"),
    Case("the site is not found", _p0({DEMO: None, "n": b"1"}), "unknown"),
]
