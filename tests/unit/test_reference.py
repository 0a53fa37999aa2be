"""References are read as Docker reads them, and what is wrong is told with what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import InvalidInput
from builder.oci.reference import (
    LayoutReference,
    Reference,
    is_tag,
    parse_layout_reference,
    parse_location,
    parse_reference,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("debian", "docker.io/library/debian"),
        ("debian:12", "docker.io/library/debian:12"),
        ("lmsysorg/sglang:v0.5.20-cu130", "docker.io/lmsysorg/sglang:v0.5.20-cu130"),
        ("index.docker.io/debian", "docker.io/library/debian"),
        ("docker.io/debian", "docker.io/library/debian"),
        ("localhost/x", "localhost/x"),
        ("localhost:5000/x:t", "localhost:5000/x:t"),
        ("127.0.0.1:5000/a/b/c", "127.0.0.1:5000/a/b/c"),
        ("[::1]:5000/x:t", "[::1]:5000/x:t"),
        ("[2001:db8::1]/x", "[2001:db8::1]/x"),
        ("ghcr.io/o/n__m/p--q", "ghcr.io/o/n__m/p--q"),
        ("GHCR.io/o/n:Tag", "ghcr.io/o/n:Tag"),
        ("host:5000/x", "host:5000/x"),
        ("x:5000", "docker.io/library/x:5000"),
        (f"x@{DIGEST}", f"docker.io/library/x@{DIGEST}"),
        (f"x:t@{DIGEST}", f"docker.io/library/x:t@{DIGEST}"),
        (f"localhost:5000/x:t@{DIGEST}", f"localhost:5000/x:t@{DIGEST}"),
    ],
)
def test_canonical_form_spells_everything_out(text: str, canonical: str) -> None:
    assert parse_reference(text).canonical == canonical


@pytest.mark.parametrize(
    ("text", "familiar"),
    [
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/lmsysorg/sglang", "lmsysorg/sglang"),
        ("docker.io/library/a/b", "library/a/b"),
        ("docker.io/a.b/c", "docker.io/a.b/c"),
        ("docker.io/localhost/c", "docker.io/localhost/c"),
        ("localhost:5000/library/x", "localhost:5000/library/x"),
    ],
)
def test_familiar_form_is_what_people_write(text: str, familiar: str) -> None:
    reference = parse_reference(text)
    assert reference.familiar == familiar
    assert parse_reference(familiar) == reference


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("LMSysOrg/sglang:v0.5.20", "lmsysorg/sglang:v0.5.20"),
        ("ghcr.io/Owner/Image:Tag", "ghcr.io/owner/image:Tag"),
        (f"Debian@{DIGEST}", f"debian@{DIGEST}"),
        ("localhost:5000/X", "localhost:5000/x"),
        ("docker://ghcr.io/a/b", "ghcr.io/a/b"),
        ("https://ghcr.io/a/b", "ghcr.io/a/b"),
        (f"x@{DIGEST.upper()}", DIGEST),
        ("a" * 64, "sha256:" + "a" * 64),
    ],
)
def test_what_was_meant_is_in_the_hint(text: str, meant: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_reference(text)
    assert refused.value.where == text
    assert refused.value.hint is not None
    assert meant in refused.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "@",
        "x:",
        "x@",
        "/x",
        "x/",
        "a//b",
        "x:t:u",
        "x@sha256:abc",
        "x@sha512:" + "0" * 128,
        f"x@{DIGEST}@{DIGEST}",
        f"@{DIGEST}",
        "-x",
        "x-",
        "a..b",
        "a___b",
        "../x",
        "a/../b",
        "x y",
        "x\n",
        "x:t\n",
        f"x@{DIGEST}\n",
        "x:-t",
        "x:.t",
        "x:" + "t" * 129,
        "ü/x",
        "host:port/x",
        "host:0/x",
        "host:65536/x",
        "host:/x",
        "[::1/x",
        "-host.org/x",
        "host..org/x",
        "h.org/" + "a" * 250,
        "user:secret@host.org/x",
        "--config=x",
    ],
)
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_reference(text)


def test_digest_decides_over_tag_and_latest_is_last() -> None:
    assert parse_reference(f"x:t@{DIGEST}").identifier == DIGEST
    assert parse_reference("x:t").identifier == "t"
    assert parse_reference("x").identifier == "latest"


def test_with_digest_keeps_the_tag_and_checks() -> None:
    assert parse_reference("x:t").with_digest(DIGEST).familiar == f"x:t@{DIGEST}"
    with pytest.raises(InvalidInput):
        parse_reference("x").with_digest("sha256:12")


def test_with_tag_drops_the_digest_and_checks() -> None:
    assert parse_reference(f"x@{DIGEST}").with_tag("t").familiar == "x:t"
    with pytest.raises(InvalidInput):
        parse_reference("x").with_tag("no tag")


_part = st.from_regex(r"[a-z0-9]{1,8}(?:(?:[_.]|__|-{1,3})[a-z0-9]{1,8}){0,2}", fullmatch=True)
_registries = st.one_of(
    st.just("docker.io"),
    st.just("localhost"),
    st.from_regex(r"[a-z0-9]{1,9}\.[a-z]{2,5}(?::[1-9][0-9]{0,3})?", fullmatch=True),
    st.from_regex(r"\[[a-f0-9]{1,4}::[a-f0-9]{1,4}\](?::[1-9][0-9]{0,3})?", fullmatch=True),
)
_tags = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
_digests = st.none() | st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)


@st.composite
def references(draw: st.DrawFn) -> Reference:
    registry = draw(_registries)
    path = "/".join(draw(st.lists(_part, min_size=1, max_size=3)))
    if registry == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return Reference(registry, path, draw(_tags), draw(_digests))


@given(references())
def test_canonical_and_familiar_forms_read_back_as_the_same(reference: Reference) -> None:
    assert parse_reference(reference.canonical) == reference
    assert parse_reference(reference.familiar) == reference


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_a_named_refusal(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidInput:
        return
    assert parse_reference(reference.canonical) == reference
    assert reference.repository == reference.repository.lower()
    assert reference.tag is None or is_tag(reference.tag)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci:out", LayoutReference(Path("out"))),
        ("oci:/a/b:v1", LayoutReference(Path("/a/b"), "v1")),
        (f"oci:a/b@{DIGEST}", LayoutReference(Path("a/b"), None, DIGEST)),
        (f"oci:a:t@{DIGEST}", LayoutReference(Path("a"), "t", DIGEST)),
    ],
)
def test_layout_references(text: str, expected: LayoutReference) -> None:
    assert parse_location(text) == expected
    assert parse_layout_reference(expected.canonical) == expected


@pytest.mark.parametrize("text", ["oci:", "oci::t", "oci:a:", "oci:a@", "oci:a:b:c", "oci:a\0b", "dir"])
def test_bad_layout_references_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_layout_reference(text)


def test_a_location_without_scheme_is_a_registry_reference() -> None:
    assert parse_location("localhost:5000/x") == Reference("localhost:5000", "x")
