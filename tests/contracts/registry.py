"""What the client and a registry do together, whichever registry it is.

``tests/unit`` runs these against the registry of ``tests/memory_registry.py``, ``tests/integration`` against
``docker-registry``: where the two differ, one of them fails. A module that runs them has the fixture
``space``, the address and name space of its registry.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.errors import ImageMismatch, Unavailable
from builder.oci.model import (
    OCI_CONFIG,
    OCI_INDEX,
    OCI_LAYER,
    OCI_MANIFEST,
    Descriptor,
    RawManifest,
    canonical_json,
    sha256_digest,
)
from builder.oci.reference import parse_reference
from builder.oci.registry.client import Network, Repository
from builder.oci.registry.retry import RetryPolicy
from builder.oci.registry.transport import NetworkSettings, Request
from builder.oci.registry.upload import SessionLostError

SETTINGS = NetworkSettings(
    retry=RetryPolicy(attempts=4, first_wait=0.01, longest_wait=0.1), upload_chunk=64 << 10, read_timeout=5.0
)
CONFIG = b'{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]}}'
LAYER = bytes(number * 7 % 251 for number in range(200_003))


def blob(data: bytes, media_type: str = OCI_LAYER) -> Descriptor:
    return Descriptor(media_type, sha256_digest(data), len(data))


def image(*layers: bytes, **more: object) -> RawManifest:
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": blob(CONFIG, OCI_CONFIG).as_json(),
        "layers": [blob(layer).as_json() for layer in layers],
    }
    return RawManifest(OCI_MANIFEST, canonical_json(manifest | more))


def push(repository: Repository, *layers: bytes, tag: str = "v1") -> RawManifest:
    for data in (CONFIG, *layers):
        repository.put_blob(blob(data), data)
    manifest = image(*layers)
    repository.put_manifest(manifest, tag=tag)
    return manifest


@pytest.fixture
def network() -> Iterator[Network]:
    warnings: list[str] = []
    with Network(SETTINGS, warn=warnings.append) as running:
        yield running
    assert warnings == []


@pytest.fixture
def app(network: Network, space: str) -> Repository:
    return network.repository(parse_reference(f"{space}/app"))


def test_an_image_that_was_pushed_reads_back(app: Repository) -> None:
    manifest = push(app, LAYER, b"")
    assert app.get_manifest("v1") == app.get_manifest(manifest.digest) == manifest
    assert app.head_manifest("v1") == manifest.descriptor
    assert app.read_blob(blob(LAYER)) == LAYER
    assert app.read_blob(blob(b"")) == b""
    assert app.list_tags() == ["v1"]


def test_what_is_not_there_is_said(app: Repository) -> None:
    assert app.find_manifest("v1") is None
    assert app.head_manifest("v1") is None
    assert not app.has_blob(blob(LAYER).digest)
    assert app.list_tags() == []
    with pytest.raises(ImageMismatch):
        app.get_manifest("v1")
    with pytest.raises(ImageMismatch):
        app.read_blob(blob(LAYER))


def test_a_tag_moves_and_the_digest_stays(app: Repository) -> None:
    first, second = push(app, LAYER), push(app, b"another")
    assert app.get_manifest("v1") == second
    assert app.get_manifest(first.digest) == first


def test_tags_come_in_pages(network: Network, app: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.oci.registry.client.TAGS_A_PAGE", 2)
    for tag in ("a", "b", "c", "d", "e"):
        push(app, LAYER, tag=tag)
    assert sorted(app.list_tags()) == ["a", "b", "c", "d", "e"]  # docker-registry does not sort them


def test_a_neighbours_blob_is_mounted(network: Network, app: Repository, space: str) -> None:
    push(app, LAYER)
    other = network.repository(parse_reference(f"{space}/other/deep"))
    sent: list[int] = []
    other.copy_blob(app, blob(LAYER), progress=sent.append)
    assert other.read_blob(blob(LAYER)) == LAYER
    assert sent == []


def test_a_blob_that_a_neighbour_lacks_is_sent(network: Network, app: Repository, space: str) -> None:
    other = network.repository(parse_reference(f"{space}/other"))
    app.put_blob(blob(LAYER), LAYER, mount_from=other)
    assert app.read_blob(blob(LAYER)) == LAYER


def test_an_image_without_its_blobs_is_refused(app: Repository) -> None:
    with pytest.raises(Unavailable, match="MANIFEST_BLOB_UNKNOWN"):
        app.put_manifest(image(LAYER), tag="v1")
    assert app.find_manifest("v1") is None


def test_an_index_is_kept_with_its_images(app: Repository) -> None:
    child = push(app, LAYER)
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [child.descriptor.as_json()]}
    manifest = RawManifest(OCI_INDEX, canonical_json(index))
    app.put_manifest(manifest, tag="index")
    assert app.get_manifest("index") == manifest


def test_what_refers_to_an_image_is_found(app: Repository) -> None:
    subject = push(app, LAYER)
    kinds = ["application/x.one", "application/x.two"]
    referrers = [image(subject=subject.descriptor.as_json(), artifactType=kind) for kind in kinds]
    app.put_referrers(referrers)
    assert {one.digest for one in app.list_referrers(subject.digest)} == {one.digest for one in referrers}
    (one,) = app.list_referrers(subject.digest, artifact_type=kinds[1])
    assert (one.digest, one.artifact_type) == (referrers[1].digest, kinds[1])
    assert app.list_referrers(referrers[0].digest) == []


@pytest.mark.parametrize("start", [0, 100_000, len(LAYER) - 1])
def test_a_part_of_a_blob(app: Repository, start: int) -> None:
    app.put_blob(blob(LAYER), LAYER)
    path, wanted = app._blob_path(blob(LAYER).digest), {"Range": f"bytes={start}-"}
    with app._transport.open(Request("GET", path, app._read, frozenset({206}), wanted)) as response:
        assert b"".join(app._transport.chunks(response)) == LAYER[start:]
        assert response.headers["Content-Range"] == f"bytes {start}-{len(LAYER) - 1}/{len(LAYER)}"


def test_a_session_says_what_it_holds(app: Repository) -> None:
    session = app._open_session()
    assert session._stored() == 0
    session.send(LAYER[:1000], 0)
    assert session._stored() == 1000
    session.cancel()
    with pytest.raises(SessionLostError):
        session._stored()


def test_a_blob_that_is_not_what_its_digest_says_is_refused(app: Repository) -> None:
    session = app._open_session()
    with pytest.raises(SessionLostError, match="DIGEST_INVALID"):
        session.finish(blob(LAYER), LAYER[:-1] + b"x")
    assert not app.has_blob(blob(LAYER).digest)
