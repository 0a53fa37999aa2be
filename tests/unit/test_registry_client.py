"""The client against a registry in this process: what works with every registry, and what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builder.errors import ImageMismatch, Unavailable
from builder.oci.model import OCI_INDEX, OCI_LAYER, Descriptor, canonical_json
from builder.oci.registry.client import Network, Repository
from builder.oci.registry.upload import send_stream
from tests.contracts.registry import *  # noqa: F403 - its tests are run here
from tests.contracts.registry import LAYER, SETTINGS, blob, image, push
from tests.memory_registry import Answer, Asked, MemoryRegistry, Proceed, cut, status, with_body, with_headers


@pytest.fixture(params=[False, True], ids=["no referrers API", "referrers API"])
def server(request: pytest.FixtureRequest) -> Iterator[MemoryRegistry]:
    with MemoryRegistry(has_referrers=request.param) as running:
        yield running


@pytest.fixture
def space(server: MemoryRegistry) -> str:
    return f"{server.address}/space"


@pytest.fixture
def plain(network: Network) -> Iterator[tuple[MemoryRegistry, Repository]]:
    """A registry, and a repository that holds the layer."""
    with MemoryRegistry() as running:
        repository = network.registry(running.address).repository("app")
        push(repository, LAYER)
        running.seen.clear()
        yield running, repository


Plain = tuple[MemoryRegistry, Repository]


def read(repository: Repository, descriptor: Descriptor) -> bytes:
    """A blob in one attempt: nothing reads it again where its bytes are wrong."""
    with repository.open_blob(descriptor) as chunks:
        return b"".join(chunks)


# --- who we are ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_of_two_challenges_the_token_is_taken_in_either_order(
    plain: Plain, swapped: bool, apart: bool
) -> None:
    """In one header or in two."""
    server, app = plain
    challenges = [f'Bearer realm="http://{server.address}/token",service="a, b"', 'Basic realm="c, d"']
    if swapped:
        challenges.reverse()
    header = ("\r\nWWW-Authenticate: " if apart else ", ").join(challenges)

    def ask(asked: Asked, proceed: Proceed) -> Answer:
        if asked.headers.get("Authorization") == "Bearer leave":
            return proceed()
        return Answer(401, b"", {"WWW-Authenticate": header})

    server.fail("GET", "/manifests/", ask, times=1000)
    server.fail("GET", "/token", status(200, b'{"token": "leave"}'), times=1000)
    assert app.get_manifest("v1").digest == image(LAYER).digest
    assert server.count("GET", "/token?service=a%2C+b") == 1


# --- downloads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 70_000, len(LAYER) - 1])
def test_a_download_goes_on_at_the_byte_where_it_stopped(plain: Plain, after: int) -> None:
    server, app = plain
    server.fail("GET", "/blobs/", cut(after))
    assert read(app, blob(LAYER)) == LAYER
    assert [asked.headers.get("Range") for asked in server.seen] == [None, f"bytes={after}-"]


@pytest.mark.parametrize("after", [1, 70_000, len(LAYER) - 1])
def test_where_ranges_are_ignored_what_was_read_is_skipped_and_not_given_twice(
    plain: Plain, after: int
) -> None:
    server, app = plain
    server.fail("GET", "/blobs/", cut(after))
    server.fail("GET", "/blobs/", with_body(LAYER))
    assert read(app, blob(LAYER)) == LAYER
    assert len(server.seen) == 2


def test_a_blob_that_is_shorter_than_promised_is_refused(plain: Plain) -> None:
    server, app = plain
    promised = Descriptor(OCI_LAYER, blob(LAYER).digest, len(LAYER) + 1)
    with pytest.raises(ImageMismatch) as refused:
        read(app, promised)
    assert str(len(LAYER)) in str(refused.value.found)
    assert len(server.seen) == 1


def test_a_registry_that_has_no_more_bytes_ends_the_download(plain: Plain) -> None:
    """416 to a resumed read: the blob is what came, and that is too little."""
    server, app = plain
    server.fail("GET", "/blobs/", cut(70_000))
    server.fail("GET", "/blobs/", status(416))
    with pytest.raises(ImageMismatch) as refused:
        read(app, blob(LAYER))
    assert "70000" in str(refused.value.found)
    assert len(server.seen) == 2


def test_an_answer_that_begins_too_late_is_not_taken(plain: Plain) -> None:
    server, app = plain
    server.fail("GET", "/blobs/", cut(70_000))
    late = f"bytes 70001-{len(LAYER) - 1}/{len(LAYER)}"
    server.fail("GET", "/blobs/", with_headers(Content_Range=late))
    assert read(app, blob(LAYER)) == LAYER
    assert len(server.seen) == 3


def test_other_bytes_than_the_digest_says_are_refused(plain: Plain) -> None:
    server, app = plain
    server.fail("GET", "/blobs/", with_body(LAYER[:-1] + b"x"), times=10)
    with pytest.raises(ImageMismatch):
        app.read_blob(blob(LAYER))
    server.fail("GET", "/manifests/", with_body(image(b"other").data), times=10)
    with pytest.raises(ImageMismatch):
        app.get_manifest(image(LAYER).digest)


# --- uploads ------------------------------------------------------------------------------------------------


def test_a_registry_that_says_it_stored_another_manifest_is_not_believed(plain: Plain) -> None:
    server, app = plain
    other = "sha256:" + "0" * 64
    server.fail("PUT", "/manifests/", with_headers(Docker_Content_Digest=other))
    with pytest.raises(ImageMismatch) as refused:
        app.put_manifest(image(LAYER), tag="v2")
    assert (refused.value.expected, refused.value.found) == (image(LAYER).digest, other)


@pytest.mark.parametrize("length", [1000, 100_000])
def test_a_source_that_ends_early_is_not_stored(plain: Plain, length: int) -> None:
    server, app = plain
    data = LAYER[:length]
    promised = Descriptor(OCI_LAYER, blob(data).digest, length + 5)
    with pytest.raises(ImageMismatch):
        app.put_blob(promised, data)
    with pytest.raises(ImageMismatch, match="ended early"):
        send_stream(app._open_session(), [data], promised, lambda _: None)
    assert server.count("PUT", "/uploads/") == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/uploads/"), ("PATCH", "/uploads/"), ("PUT", "/uploads/"), ("PUT", "/manifests/")],
)
@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_failure_that_passes_is_survived_and_one_that_stays_tags_nothing(
    plain: Plain, method: str, path: str, code: int
) -> None:
    server, app = plain
    data = LAYER[::-1]
    server.fail(method, path, status(code, Retry_After="0"), times=SETTINGS.retry.attempts - 1)
    push(app, data, tag="good")
    assert app.read_blob(blob(data)) == data
    server.fail(method, path, status(code, Retry_After="0"), times=1000)
    with pytest.raises(Unavailable):
        push(app, data[:-1], tag="bad")
    assert app.list_tags() == ["good", "v1"]


@pytest.mark.parametrize("code", [202, 404, 405])
def test_a_registry_that_does_not_mount_gets_the_bytes(network: Network, plain: Plain, code: int) -> None:
    server, app = plain
    other = network.registry(server.address).repository("other")
    if code == 202:
        server.fail("POST", "mount=", lambda asked, proceed: server._open_upload("other", {}))
    else:
        server.fail("POST", "mount=", status(code))
    other.put_blob(blob(LAYER), LAYER, mount_from=app)
    assert server.count("PATCH") == -(-len(LAYER) // SETTINGS.upload_chunk)
    assert other.read_blob(blob(LAYER)) == LAYER


def test_pieces_that_are_too_large_are_made_smaller_or_sent_whole(plain: Plain) -> None:
    server, _ = plain
    heard: list[str] = []
    with Network(SETTINGS, warn=heard.append) as network:
        app = network.registry(server.address).repository("app")
        server.fail("PATCH", "/uploads/", status(413), times=1000)
        data = LAYER[::-1]
        app.put_blob(blob(data), data)
        assert app.read_blob(blob(data)) == data
    assert len(heard) == 1


def test_pieces_are_at_least_as_large_as_the_registry_asks_for(plain: Plain) -> None:
    server, app = plain
    data = LAYER[::-1]
    smallest = SETTINGS.upload_chunk + 10_000
    server.fail("POST", "/uploads/", with_headers(OCI_Chunk_Min_Length=str(smallest)))
    app.put_blob(blob(data), data)
    sent = [len(asked.body) for asked in server.seen if asked.method == "PATCH"]
    assert sent == [smallest] * (len(data) // smallest) + [len(data) % smallest]
    assert app.read_blob(blob(data)) == data


@pytest.mark.parametrize("code", [405, 501])
def test_a_registry_that_knows_no_head_is_asked_by_get(plain: Plain, code: int) -> None:
    server, app = plain
    server.fail("HEAD", "/", status(code), times=1000)
    assert app.find_tag("v1") == image(LAYER).digest
    assert app.head_manifest("none") is None
    data = LAYER[::-1]
    app.put_blob(blob(data), data)
    assert app.read_blob(blob(data)) == data


# --- referrers ----------------------------------------------------------------------------------------------


def test_without_the_api_a_list_is_kept_under_a_tag_and_with_it_none(network: Network) -> None:
    for has_referrers in (False, True):
        with MemoryRegistry(has_referrers=has_referrers) as server:
            app = network.registry(server.address).repository("app")
            subject = push(app, LAYER)
            app.put_referrer(image(subject=subject.descriptor.as_json(), artifactType="application/x.one"))
            listed = subject.digest.replace(":", "-") in app.list_tags()
            assert listed is not has_referrers


@pytest.mark.parametrize("left_out", [("artifactType",), ("annotations",), ("artifactType", "annotations")])
def test_what_a_list_of_referrers_leaves_out_is_read_from_their_manifests(
    network: Network, left_out: tuple[str, ...]
) -> None:
    with MemoryRegistry(has_referrers=True) as server:
        app = network.registry(server.address).repository("app")
        subject = push(app, LAYER)
        said = {"artifactType": "application/x.one", "annotations": {"a": "b"}}
        entry = app.put_referrer(image(subject=subject.descriptor.as_json(), **said)).as_json()
        listed = {key: value for key, value in entry.items() if key not in left_out}
        page = canonical_json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [listed]})
        server.fail("GET", "/referrers/", status(200, page, Content_Type=OCI_INDEX))
        (found,) = app.list_referrers(subject.digest, artifact_type="application/x.one")
        assert found.as_json() == entry
