"""An image's file system is what overlayfs would show, links and whiteouts included."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import ImageMismatch
from builder.oci.layer_index import LayerIndex, index_layer
from builder.oci.model import OCI_LAYER, Descriptor, sha256_digest
from builder.oci.rootfs import RootFS
from builder.oci.tarwalk import Kind
from tests.examples import examples

# One entry of a test's tar: path, kind, and content or target. A path "a/.wh.b" is a whiteout as it stands.
Item = tuple[str, str, str]
TYPES = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "sym": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}


def a_tar(items: list[Item]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, kind, content in items:
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.uid, info.gid = TYPES[kind], 0o750, 7, 8
            if kind == "file":
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content.encode()))
            else:
                info.linkname = content
                archive.addfile(info)
    return out.getvalue()


def index(tar: bytes, cache: Path) -> LayerIndex:
    digest = sha256_digest(tar)
    return index_layer(iter([tar]), Descriptor(OCI_LAYER, digest, len(tar)), cache_dir=cache, diff_id=digest)


Stack = Callable[..., RootFS]


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    return lambda *layers: RootFS([index(a_tar(list(items)), tmp_path) for items in layers])


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def content(root: RootFS, path: str) -> str | None:
    found = root.lookup(path)
    return found and found.sha256


def test_topmost_layer_counts_and_is_named(stack: Stack) -> None:
    root = stack([("a", "file", "old"), ("b", "file", "b")], [("a", "file", "new")])
    found = root.lookup("/a")
    assert found is not None
    assert (found.sha256, found.layer, found.mode, found.uid, found.gid) == (sha("new"), 1, 0o750, 7, 8)
    assert found.blob == hashlib.sha1(b"blob 3\0new").hexdigest()
    assert root.lookup("b").layer == 0  # type: ignore[union-attr]


def test_whiteout_removes_a_file_and_all_below_a_directory(stack: Stack) -> None:
    root = stack(
        [("d/x", "file", "x"), ("d/e/y", "file", "y"), ("f", "file", "f")],
        [("d/.wh.e", "file", ""), (".wh.f", "file", "")],
    )
    assert root.lookup("f") is None
    assert root.lookup("d/e/y") is None
    assert root.listdir("d") == ["x"]
    assert root.listdir("") == ["d"]


def test_directory_made_anew_over_its_whiteout_is_empty_below(stack: Stack) -> None:
    root = stack([("d/x", "file", "x")], [(".wh.d", "file", ""), ("d", "dir", ""), ("d/y", "file", "y")])
    assert root.listdir("d") == ["y"]
    assert root.lookup("d/x") is None


def test_opaque_directory_hides_what_is_below_but_not_its_own_layer(stack: Stack) -> None:
    root = stack([("d/x", "file", "x")], [("d/y", "file", "y"), ("d/.wh..wh..opq", "file", "")])
    assert root.listdir("d") == ["y"]
    assert root.lookup("d/x") is None


def test_opaque_marker_alone_leaves_the_directory_as_it_was(stack: Stack) -> None:
    root = stack([("d", "dir", ""), ("d/x", "file", "x")], [("d/.wh..wh..opq", "file", "")])
    found = root.lookup("d")
    assert found is not None
    assert (found.kind, found.mode, root.listdir("d")) == (Kind.DIRECTORY, 0o750, [])


def test_file_in_place_of_a_directory_hides_it_for_ever(stack: Stack) -> None:
    root = stack(
        [("d/x", "file", "x")], [("d", "file", "file")], [(".wh.d", "file", "")], [("d/y", "file", "y")]
    )
    assert root.listdir("d") == ["y"]


def test_directory_without_an_entry_of_its_own_keeps_the_lower_mode(stack: Stack) -> None:
    root = stack([("d", "dir", "")], [("d/x", "file", "x")])
    assert root.lookup("d").mode == 0o750  # type: ignore[union-attr]


def test_symbolic_links_are_followed_inside_the_root(stack: Stack) -> None:
    root = stack(
        [("usr/lib/x", "file", "x"), ("lib", "sym", "usr/lib"), ("abs", "sym", "/lib/x")],
        [("usr/bin/up", "sym", "../../../../lib/x"), ("dots", "sym", "usr/bin/../lib")],
    )
    for path in ("lib/x", "/abs", "usr/bin/up", "dots/x", "../lib/./x", "usr/bin/../lib//x"):
        assert content(root, path) == sha("x"), path
        assert root.real_path(path) == "usr/lib/x", path
    assert root.lookup("lib/x/y") is None
    assert root.lookup("usr/nothing/../lib/x") is None


def test_symbolic_link_replaced_by_a_directory_is_not_followed(stack: Stack) -> None:
    root = stack(
        [("real/x", "file", "old"), ("d", "sym", "real")],
        [("d", "dir", ""), ("d/x", "file", "new")],
    )
    assert content(root, "d/x") == sha("new")
    assert content(root, "real/x") == sha("old")


@pytest.mark.parametrize("links", [[("a", "sym", "a")], [("a", "sym", "b"), ("b", "sym", "/a")]])
def test_links_in_a_circle_are_an_error(stack: Stack, links: list[Item]) -> None:
    with pytest.raises(ImageMismatch, match="circle") as caught:
        stack(links).lookup("a/x")
    assert caught.value.where == "/a/x"


def test_forty_links_are_followed_as_linux_does(stack: Stack) -> None:
    chain = [(f"l{n}", "sym", f"l{n + 1}") for n in range(41)]
    root = stack([*chain, ("l41", "file", "end")])
    assert content(root, "l1") == sha("end")
    with pytest.raises(ImageMismatch, match="circle"):
        root.lookup("l0")


def test_dangling_link_leads_nowhere(stack: Stack) -> None:
    root = stack([("a", "sym", "nowhere/x")])
    assert root.lookup("a") is None


def test_hard_link_has_the_content_it_was_made_with(stack: Stack) -> None:
    root = stack([("a", "file", "first"), ("b", "hard", "a"), ("a", "file", "second")])
    assert (content(root, "a"), content(root, "b")) == (sha("second"), sha("first"))


def test_hard_link_to_a_lower_layer_is_followed(stack: Stack) -> None:
    root = stack([("a", "file", "low")], [("a", "file", "mid")], [("x/b", "hard", "a"), ("a", "file", "top")])
    found = root.lookup("x/b")
    assert found is not None
    # An entry of the same layer that comes later does not change what the link was made to.
    assert (found.sha256, found.layer, found.stored, found.stored_layer) == (sha("mid"), 2, "a", 1)


def test_hard_link_to_nothing_is_an_error_that_names_it(stack: Stack) -> None:
    root = stack([("a", "file", "x"), ("b", "hard", "gone")])
    assert root.listdir("") == ["a", "b"]
    with pytest.raises(ImageMismatch, match="hard link") as caught:
        root.lookup("b")
    assert (caught.value.where, caught.value.found) == ("/b in layer 0", "/gone")


def test_entry_below_a_file_of_its_layer_is_refused(stack: Stack) -> None:
    with pytest.raises(ImageMismatch, match="not a directory") as caught:
        stack([("a", "file", ""), ("a/b", "file", "")])
    assert caught.value.found == "a"


def test_entry_below_a_link_of_its_layer_lies_where_the_link_points(stack: Stack) -> None:
    root = stack([("usr/lib", "dir", ""), ("lib", "sym", "/usr/lib"), ("lib/x", "file", "x")])
    found = root.lookup("usr/lib/x")
    assert found is not None
    assert (found.sha256, found.stored) == (sha("x"), "lib/x")


def test_an_image_without_layers_has_an_empty_root(stack: Stack) -> None:
    root = stack()
    assert root.listdir("/") == []
    assert root.lookup("") is not None
    assert root.lookup("x") is None


# What follows builds random images and asks an oracle that knows nothing of indexes: trees of nested dicts.

Tree = dict[str, "Tree | str"]
parts = st.sampled_from(["a", "b", "c"])
paths = st.lists(parts, min_size=1, max_size=3).map("/".join)
item = st.one_of(
    st.tuples(paths, st.just("file"), st.text("xyz", max_size=3)),
    st.tuples(paths, st.just("dir"), st.just("")),
    st.tuples(paths, st.just("white"), st.just("")),
    st.tuples(st.one_of(st.just(""), paths), st.just("opaque"), st.just("")),
)


def unpack(items: list[Item]) -> Tree | None:
    """The tree that one layer leaves in an empty directory; None where unpacking it would fail."""
    tree: Tree = {}
    for path, kind, text in items:
        *above, name = path.split("/")
        here = tree
        for part in above if kind in ("file", "dir") else []:
            below = here.setdefault(part, {})
            if not isinstance(below, dict):
                return None
            here = below
        if kind == "file":
            here[name] = text
        elif kind == "dir" and not isinstance(here.get(name), dict):
            here[name] = {}
    return tree


def removed(tree: Tree, path: str, *, contents: bool) -> None:
    here: Tree | str | None = tree
    above, _, name = path.rpartition("/") if not contents else (path, "", "")
    for part in above.split("/") if above else []:
        here = here.get(part) if isinstance(here, dict) else None
    if isinstance(here, dict):
        if contents:
            here.clear()
        else:
            here.pop(name, None)


def merged(lower: Tree | str | None, upper: Tree | str) -> Tree | str:
    if isinstance(upper, str) or not isinstance(lower, dict):
        return upper if isinstance(upper, str) else {name: merged(None, it) for name, it in upper.items()}
    return {**lower, **{name: merged(lower.get(name), it) for name, it in upper.items()}}


def in_tar(it: Item) -> Item:
    path, kind, text = it
    above, slash, name = path.rpartition("/")
    if kind == "white":
        return (f"{above}{slash}.wh.{name}", "file", "")
    if kind == "opaque":
        return (f"{path}/.wh..wh..opq".lstrip("/"), "file", "")
    return (path, kind, text)


def listing(root: RootFS, path: str) -> Tree | str | None:
    found = root.lookup(path)
    if found is None:
        return None
    if found.is_directory:
        prefix = f"{path}/" if path else ""
        return {name: listing(root, prefix + name) or {} for name in root.listdir(path)}
    return found.sha256 or ""


def hashed(tree: Tree | str) -> Tree | str:
    return sha(tree) if isinstance(tree, str) else {name: hashed(it) for name, it in tree.items()}


@settings(deadline=None, max_examples=examples(30))
@given(st.lists(st.lists(item, max_size=7), min_size=1, max_size=4))
def test_random_stacks_look_as_unpacked(layers: list[list[Item]]) -> None:
    with TemporaryDirectory() as cache:
        expected: Tree | str = {}
        indexes = []
        for items in layers:
            upper = unpack(items)
            if upper is None:  # no engine unpacks such a layer
                continue
            indexes.append(index(a_tar([in_tar(it) for it in items]), Path(cache)))
            assert isinstance(expected, dict)
            for path, kind, _ in items:
                if kind in ("white", "opaque"):
                    removed(expected, path, contents=kind == "opaque")
            expected = merged(expected, upper)
        root = RootFS(indexes)
        assert listing(root, "") == hashed(expected)
        for path in ("a", "a/b", "a/b/c", "b/c", "c/c/c"):
            here: Tree | str | None = hashed(expected)
            for part in path.split("/"):
                here = here.get(part) if isinstance(here, dict) else None
            assert (root.lookup(path) is None) == (here is None)
