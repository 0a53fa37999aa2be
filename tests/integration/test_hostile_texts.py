"""What a patch, a spec or a name holds is shown with its controls written out, by whatever command."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from builder.printable import printable
from builder.retire.markdown import escaped
from tests.projects.image import NAME, ImageProject, patch

STEERS = "\u202e\u2066\u200b\ufeff\u00ad\x9b8m\x1b[8m\x07\x7f\x85\U000e0041"
IN_YAML = r"\u202e\u2066\u200b\ufeff\u00ad\x9b8m\U000e0041"
HOSTILE = (
    patch()
    .replace(b"Subject: b is three", f"Subject: b {STEERS} is".encode())
    .replace(
        b"Upstream-Status: Pending",
        f"Upstream-Status: Inappropriate [{STEERS}]\nBug: {STEERS}\nX-{STEERS}: x\nCc: {STEERS}".replace(
            f"X-{STEERS}", "X-Unknown"
        ).encode(),
    )
)


def created(path: str) -> bytes:
    quoted = "".join(f"\\{byte:03o}" for byte in path.encode())
    return (
        f'diff --git "a/{quoted}" "b/{quoted}"\nnew file mode 100644\nindex {"0" * 40}..{"1" * 40}\n'
        f'--- /dev/null\n+++ "b/{quoted}"\n@@ -0,0 +1 @@\n+x = 1\n'
    ).encode()


@pytest.fixture
def world(tmp_path: Path) -> ImageProject:
    world = ImageProject.create(tmp_path)
    world.spec.write_text(world.spec.read_text().replace("summary: a demo", f'summary: "a {IN_YAML}"'))
    (world.root / "patches/one/p0.patch").write_bytes(HOSTILE + created("python/sglang/x\u202e\x1b[8m.py"))
    return world


def steering(text: str) -> set[str]:
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cf") and char not in "\n\t"}


def test_no_command_prints_what_steers_a_terminal(world: ImageProject) -> None:
    base = world.base().reference
    mailbox = world.directory / f"x{STEERS[0]}.mbox"
    mailbox.write_bytes(HOSTILE.replace(b"b = 3", b"b = 5"))
    image = f"oci:{world.directory}/out:new"
    for words in (
        ("list",),
        ("list", "--json"),
        ("show", NAME),
        ("show", NAME, "--json"),
        ("show", NAME, f"p{STEERS[0]}"),
        ("patch", "lint", "one"),
        ("patch", "export", "one"),
        ("patch", "lint", "one"),
        world.build(base, "--dry-run"),
        world.build(base),
        world.build(base, "--json"),
        ("inspect", image),
        ("inspect", image, "--json"),
        ("verify", image, "--base", base),
        ("diff", "compare", NAME, image),
        ("probe", f"overlay:{NAME}"),
        ("probe", f"overlay:{NAME}", "--format", "markdown"),
        ("patch", "import", "one", mailbox, "--status", "Pending"),
        ("patch", "import", "one", world.directory / "x\u202e"),
        ("patch", "edit", "one", f"p0{STEERS[0]}"),
        ("patch", "edit", "one"),
        ("patch", "refresh", "one", "p0"),
        ("patch", STEERS[0]),
        (STEERS[0],),
        ("build", f"x{STEERS[0]}"),
    ):
        done = world.overlay(*words)
        assert steering(done.out + done.err) == set(), (words, done.out, done.err)
        assert "made a mistake" not in done.err, (words, done.err)


def test_the_subject_is_still_told(world: ImageProject) -> None:
    assert "b \\u202e\\u2066" in world.overlay("show", NAME).check().out


def test_markdown_and_errors_are_written_out_too() -> None:
    assert escaped("a\u202eb\x1b[31m|") == "a\\\\u202eb\\\\x1b\\[31m\\|"
    assert printable("\x1b[31mred\x1b[0m \x1b[8mhidden", colors=True) == "\x1b[31mred\x1b[0m \\x1b[8mhidden"
    assert printable("\x1b[31mred", colors=False) == "\\x1b[31mred"
