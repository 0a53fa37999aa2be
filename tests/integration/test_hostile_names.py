"""Names that no file system takes, or no manifest holds, and texts that are long: our own errors, in time."""

from __future__ import annotations

import gzip
import io
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from builder.author.inputs import read_input_patches
from builder.author.lint.text import lint_patch
from builder.errors import InvalidInput
from builder.oci.inflate import inflate
from builder.oci.model import OCI_LAYER, Descriptor
from builder.patch.encoded_words import decode_words
from builder.patch.message import read_head
from builder.patch.patch import parse_patch
from tests.projects.image import NAME, SYSTEM, TREE, ImageProject, layer, patch

LENGTH = 1 << 17


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ImageProject:
    return ImageProject.create(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def base(world: ImageProject) -> str:
    return world.base().reference


def created(path: bytes) -> bytes:
    """A diff that makes a file, with the name quoted as git does it."""
    quoted = b"".join(b"\\%03o" % char if char > 126 else bytes([char]) for char in path)
    return (
        b'diff --git "a/%s" "b/%s"\nnew file mode 100644\nindex %s..%s\n--- /dev/null\n+++ "b/%s"\n'
        b"@@ -0,0 +1 @@\n+x = 1\n"
    ) % (quoted, quoted, b"0" * 40, b"7d4290a117a4ddcc11daae7ea675841033830c8f", quoted)


@pytest.mark.parametrize(
    "path",
    [
        b"a" * 256 + b".py",
        b"/".join([b"a" * 200] * 21) + b"/x.py",
        b"a/" * 3000 + b"x.py",
        b"a/" * 600 + b"x",
    ],
    ids=["component", "path", "nested", "nested less"],
)
@pytest.mark.parametrize(
    "words", [("build",), ("show", NAME), ("patch", "edit", "one"), ("patch", "lint", "one")]
)
def test_a_patch_that_names_what_no_file_system_takes_is_refused(
    world: ImageProject, base: str, path: bytes, words: tuple[str, ...]
) -> None:
    (world.root / "patches/one/p0.patch").write_bytes(patch() + created(b"python/sglang/" + path))
    done = world.overlay(*(world.build(base) if words == ("build",) else words)).check(1)
    assert "patch names a path that is too long" in done.out + done.err


@pytest.mark.parametrize("drop", ["", "patches: {series: one, drop: [docs/*]}\n"])
def test_a_name_that_is_not_utf_8_is_refused_by_what_must_write_it(
    world: ImageProject, base: str, drop: str
) -> None:
    path = b"docs/caf\xe9.md" if drop else b"python/sglang/caf\xe9.py"
    (world.root / "patches/one/p0.patch").write_bytes(patch() + created(path))
    sound = world.spec.read_text()
    if drop:
        world.spec.write_text(sound.replace("patches: {series: one}\n", drop))
    done = world.overlay(*world.build(base, "--json")).check(1)
    world.spec.write_text(sound)
    assert done.json["error"]["what"] == "a file's name is not UTF-8, and the image's manifest cannot name it"
    world.overlay("show", NAME).check()


def directories(depth: int) -> Callable[[tarfile.TarFile], None]:
    def write(tar: tarfile.TarFile) -> None:
        entry = tarfile.TarInfo(f"{TREE}/sglang/" + "a/" * depth + "x.py")
        entry.size = 1
        tar.addfile(entry, io.BytesIO(b"\n"))

    return write


def test_a_base_with_names_that_no_file_system_takes_is_refused(world: ImageProject) -> None:
    for number, path in enumerate([f"{TREE}/" + "a" * 256, f"{TREE}/" + "a/" * 3000 + "x"]):
        (world.root / "patches/one/p0.patch").write_bytes(patch())
        layout = world.base(f"long-{number}")
        layout.put_image([layer(SYSTEM), layer({path: b""})])
        error = world.overlay(*world.build(layout.reference, "--json")).check(5).json["error"]
        assert error["what"] in (
            "a layer holds a name that no file system takes",
            "a layer holds a path that is not a path",
        )


def test_a_base_of_many_nested_directories_is_read(world: ImageProject) -> None:
    """More than Python lets a function call itself."""
    (world.root / "patches/one/p0.patch").write_bytes(patch())
    layout = world.base("deep")
    demo = layer({f"{TREE}/sglang/demo.py": (world.upstream / "python/sglang/demo.py").read_bytes()})
    deep = "/" + f"{TREE}/sglang/" + "a/" * 1100
    config = {"Env": ["PATH=/usr/bin", f"PYTHONPATH={deep}:{'/a' * 4_000}"], "WorkingDir": "/"}
    layout.put_image([layer(SYSTEM), demo, layer(directories(1100))], config={"config": config})
    world.overlay(*world.build(layout.reference, to="deep-out")).check()


# What grew with the square of its length once. What is quadratic takes minutes here.
def mail(subject: bytes = b"x", trailers: bytes = b"Upstream-Status: Pending") -> bytes:
    before, rest = patch().split(b"Subject: ", 1)
    return (
        before
        + b"Subject: "
        + subject
        + b"\n\n"
        + trailers
        + b"\n---\n\n"
        + rest[rest.index(b"diff --git") :]
    )


LONG: dict[str, bytes] = {
    "encoded words": mail(b"=?utf-8?q?a?=\n " * 50_000 + b"x"),
    "encoded words on a line": mail(b"=?utf-8?q?a?= " * 50_000),
    "encoded words of two charsets": mail(b"=?utf-8?q?a?= =?iso-8859-1?q?a?= " * 25_000),
    "words that begin": mail(b"=?utf-8?q?" * 100_000),
    "a folded subject": mail(b"x" + b"\n a" * (LENGTH // 3)),
    "a folded trailer": mail(trailers=b"Upstream-Status: Pending" + b"\n a" * (LENGTH // 3)),
    "trailers": mail(trailers=b"Upstream-Status: Pending\n" + b"Cc: x\n" * (LENGTH // 6)),
    "unknown trailers": mail(
        trailers=b"Upstream-Status: Pending\n" + b"".join(b"X-%d: x\n" % n for n in range(10_000)).rstrip()
    ),
    "an allowance without end": mail(
        trailers=b"Upstream-Status: Pending\nOverlay-Allow: data-file x [" + b"a" * LENGTH
    ),
    "a status without end": mail(trailers=b"Upstream-Status: Pending [" + b"a] " * (LENGTH // 3)),
    "blanks": mail(b"x" + b" " * LENGTH + b"y"),
    "an author of blanks": mail().replace(b"From: T", b"From: T" + b" " * LENGTH),
    "a date of digits": mail().replace(b"Date: Sat", b"Date: " + b"9" * LENGTH),
    "rules": mail(trailers=b"Upstream-Status: Pending\n---" + b"\n" * LENGTH),
    "prefixes": mail(b"[PATCH" * (LENGTH // 6)),
    "openings": mail(trailers=b"--- a\n+++ b\n" * (LENGTH // 12)),
    "hunks": mail() + b"@@ -1 +1 @@\n-a\n+b\n" * (LENGTH // 19),
    "hunks that count too much": mail() + b"@@ -1,999999999 +1,999999999 @@\n-a\n+b\n" * (LENGTH // 38),
    "signatures": mail() + b"-- \n" * (LENGTH // 4),
    "files": mail() + created(b"python/x.py") * (LENGTH // 200),
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_text_is_read_in_time(what: str) -> None:
    data = LONG[what]
    start = time.process_time()
    for read in (
        lambda: parse_patch("p", data),
        lambda: list(lint_patch("p", "patches/one/p.patch", data)),
        lambda: read_head(data.partition(b"\n---\n")[0]).trailers(),
        lambda: read_input_patches(data, "p"),
    ):
        with suppress(InvalidInput):
            read()
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("=?utf-8?q?a=C3=A9_b?= x", "aé b x"),
        ("x =?utf-8?b?w6k=?= =?utf-8?q?_y?=", "x é y"),
        ("=?UTF-8?Q?=C3?= =?UTF-8?Q?=A9?=", "é"),
        ("=?iso-8859-1?q?=E9?= =?utf-8*en?q?=C3=A9?= z", "éé z"),
        ("a =?no-such?q?x?= b", "a =?no-such?q?x?= b"),
        ("=?utf-8?q?a?= =?hex?q?41?= b", "a =?hex?q?41?= b"),
        ("=?utf-8?q?=FF?= x", "=?utf-8?q?=FF?= x"),
        ("=?utf-8?b?A?=", "=?utf-8?b?A?="),
        ("=? and ?=", "=? and ?="),
    ],
)
def test_encoded_words_are_text_and_others_stay_as_they_are(written: str, meant: str) -> None:
    assert decode_words(written) == meant


def test_a_layer_of_many_empty_members_is_read_in_time() -> None:
    data = gzip.compress(b"", mtime=0) * 100_000
    start = time.process_time()
    assert b"".join(inflate(iter([data]), Descriptor(OCI_LAYER, "sha256:0", len(data)), limit=1)) == b""
    assert time.process_time() - start < 5
