"""Bytes on their way: checked before the last of them is given, and cut into pieces that lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builder.errors import ImageMismatch
from builder.oci.model import OCI_LAYER, Descriptor, Platform, sha256_digest, verified
from builder.oci.registry.upload import _pieces

chunks_of_bytes = st.lists(st.binary(max_size=40), max_size=12)


@given(chunks_of_bytes)
def test_right_bytes_pass_unchanged(chunks: list[bytes]) -> None:
    data = b"".join(chunks)
    assert b"".join(verified(chunks, Descriptor(OCI_LAYER, sha256_digest(data), len(data)), "here")) == data


@given(chunks_of_bytes, chunks_of_bytes)
def test_of_other_bytes_never_the_whole_is_given(chunks: list[bytes], others: list[bytes]) -> None:
    data, other = b"".join(chunks), b"".join(others)
    assume(other != data)
    given_out: list[bytes] = []
    stream = verified(others, Descriptor(OCI_LAYER, sha256_digest(data), len(data)), "here")
    with pytest.raises(ImageMismatch) as wrong:
        given_out.extend(stream)
    assert wrong.value.where == "here"
    assert len(b"".join(given_out)) < max(len(data), 1)


def test_more_bytes_than_promised_end_the_stream_at_once() -> None:
    def endless() -> object:
        while True:
            yield b"x" * 100

    with pytest.raises(ImageMismatch, match="not what its digest says"):
        list(verified(endless(), Descriptor(OCI_LAYER, sha256_digest(b""), 1000), "here"))  # type: ignore[arg-type]


@given(chunks_of_bytes, st.integers(1, 50))
def test_pieces_lose_nothing_and_have_their_size(chunks: list[bytes], size: int) -> None:
    pieces = list(_pieces(chunks, size))
    assert b"".join(pieces) == b"".join(chunks)
    assert all(len(piece) == size for piece in pieces[:-1])
    assert 0 < len(pieces[-1]) <= size or pieces == [b""]


descriptors = st.builds(
    Descriptor,
    media_type=st.text(max_size=20),
    digest=st.binary(max_size=8).map(sha256_digest),
    size=st.integers(0, 2**40),
    platform=st.none()
    | st.builds(Platform, st.just("linux"), st.sampled_from(["arm64", "amd64"]), st.just("v8")),
    annotations=st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3),
    artifact_type=st.none() | st.text(max_size=20),
)


@given(descriptors)
def test_a_descriptor_reads_back_from_its_json(descriptor: Descriptor) -> None:
    assert Descriptor.from_json(descriptor.as_json(), "here") == descriptor


keys = st.sampled_from(["mediaType", "digest", "size", "platform", "os"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


@given(json_values)
def test_any_other_json_is_a_named_refusal(value: object) -> None:
    with pytest.raises(ImageMismatch) as refused:
        Descriptor.from_json(value, "here")
    assert refused.value.where == "here"


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "sha256:../../etc/passwd"},
        {"digest": None},
        {"size": -1},
        {"size": True},
        {"size": "1"},
        {"mediaType": 1},
        {"annotations": [1]},
        {"platform": "linux"},
    ],
)
def test_a_damaged_descriptor_is_refused(change: dict[str, object]) -> None:
    whole = Descriptor(OCI_LAYER, sha256_digest(b""), 1, annotations={"a": "b"}).as_json()
    with pytest.raises(ImageMismatch):
        Descriptor.from_json(whole | change, "here")
