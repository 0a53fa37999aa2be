"""Images in registries: read, written, mounted and copied (OCI distribution-spec 1.1).

Every byte that is handed out was checked against its digest. Tags are written last and never by a part of a
build. What may fail for a while is tried again within bounds; what then fails is :class:`Unavailable`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import TypeVar
from urllib.parse import quote

from builder.errors import ImageMismatch, InvalidInput, OverlayError, Unavailable
from builder.oci.document import json_object, media_type_of
from builder.oci.model import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    OCI_INDEX,
    Descriptor,
    ImageSource,
    Progress,
    RawManifest,
    WrongBytesError,
    is_digest,
    verified,
)
from builder.oci.parallel import OthersFailedError
from builder.oci.reference import Reference, is_tag, parse_reference
from builder.oci.registry.auth import DeniedError, Scopes, pull, push
from builder.oci.registry.referrers import (
    listed,
    listing,
    lists_referrers,
    referrer_descriptor,
    referrers_tag,
    subject_of,
)
from builder.oci.registry.retry import TransientError
from builder.oci.registry.transport import (
    Connections,
    NetworkSettings,
    Reply,
    Request,
    Transport,
    Warn,
    error_codes,
)
from builder.oci.registry.upload import (
    SMALLEST_CHUNK,
    PiecesRefusedError,
    PieceTooLargeError,
    SessionLostError,
    UploadSession,
    send_stream,
    send_whole,
)

LARGEST_MANIFEST = 4 << 20  # bytes, as the distribution-spec recommends to registries
ACCEPT = ", ".join(sorted(MANIFEST_TYPES | INDEX_TYPES))
MOST_PAGES = 20
LIST_ATTEMPTS = 5
TAGS_A_PAGE = 1000
NEAREST = 5
MOST_TAGS = 10  # that a message names
BLOB_UNKNOWN_TRIES = 2
BLOB_UNKNOWN_PAUSE = 0.3  # seconds
WORTH_RESUMING = 64 << 10  # bytes between two failures that count as getting on

_FOUND = frozenset({200})
_MAYBE = frozenset({200, 404})
_NO_HEAD = frozenset({405, 501})
# A registry that keeps blobs elsewhere may answer 403 from there, or know no HEAD: then the blob is sent.
_PERHAPS_A_BLOB = frozenset({200, 403, 404}) | _NO_HEAD
# What registries answer on the path of the referrers API when they have no such API.
_NO_REFERRERS_API = frozenset({400, 401, 403, 404, 405, 406, 410, 501})
_REFUSED_REFERRER = frozenset({400, 405, 415, 422, 501})
MOST_READ_REFERRERS = 64
_NEXT_PAGE = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/(?:[0-9]+|\*)")


class Network:
    """All the registries of one run: one pool of connections, each registry's leave asked for once.

    Args:
        settings: limits and retries; from the environment if not given.
        warn: hears what a person should know though the work goes on.
    """

    def __init__(self, settings: NetworkSettings | None = None, *, warn: Warn) -> None:
        self._settings = settings or NetworkSettings.from_environment()
        self._connections = Connections(self._settings)
        self._warn = warn
        self._registries: dict[str, Registry] = {}
        self._lock = Lock()

    def registry(self, name: str) -> Registry:
        """The registry of this name, e.g. ``docker.io`` or ``localhost:5000``."""
        with self._lock:  # threads share a registry, and with it what it was asked for already
            if name not in self._registries:
                transport = Transport(name, self._settings, self._connections, self._warn)
                self._registries[name] = Registry(transport)
            return self._registries[name]

    def repository(self, reference: Reference) -> Repository:
        """The repository that ``reference`` names."""
        return self.registry(reference.registry).repository(reference.repository)

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Registry:
    """One registry. Made by :class:`Network`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.name = transport.registry
        self.piece = transport.settings.upload_chunk
        """Bytes of a blob to send at once: less where the registry was seen to refuse as many."""
        self._repositories: dict[str, Repository] = {}

    def ping(self) -> None:
        """Ask whether this is a registry that answers us.

        Raises:
            Unavailable: it does not, or refuses us.
        """
        self.transport.request(Request("GET", "/v2/", frozenset(), _FOUND))

    def repository(self, path: str) -> Repository:
        """One repository of it, by its path: ``lmsysorg/sglang``."""
        parse_reference(f"{self.name}/{path}")
        return self._repositories.setdefault(path, Repository(self, path))


class Repository:
    """One repository of a registry: an ``ImageSource`` and an ``ImageSink``. Made by :class:`Registry`."""

    workers = 4  # blobs at a time: what takes a registry long is to answer, not to be told

    def __init__(self, registry: Registry, path: str) -> None:
        self.registry = registry
        self.path = path
        self._transport = registry.transport
        self._root = f"/v2/{path}"
        self._read: Scopes = frozenset({pull(path)})
        self._write: Scopes = frozenset({push(path)})
        self._does_not_mount: set[str] = set()  # names of neighbours
        self._not_near: set[str] = set()
        self._stored: set[str] = set()  # blobs seen here in this run: they are not asked for again
        self._turns: dict[str, Lock] = {}

    @property
    def name(self) -> str:
        """As people write it: ``lmsysorg/sglang``, ``localhost:5000/sglang``."""
        return Reference(self.registry.name, self.path).familiar

    # --- reading ------------------------------------------------------------------------------------------

    def get_manifest(self, identifier: str) -> RawManifest:
        """The manifest or index with this tag or digest, at most 4 MiB.

        Raises:
            ImageMismatch: it is not there (for a tag: with the nearest tags), or its bytes are not what its
                digest says.
            Unavailable: the registry did not answer within the bounded retries, or denies it.
        """
        manifest = self.find_manifest(identifier)
        if manifest is None:
            raise self._not_there(identifier)
        return manifest

    def find_manifest(self, identifier: str) -> RawManifest | None:
        """Like :meth:`get_manifest`, but ``None`` where there is no such manifest."""
        return _twice(lambda: self._find_manifest(identifier))

    def _find_manifest(self, identifier: str) -> RawManifest | None:
        reply = self._transport.request(self._ask("GET", identifier, self._read))
        if reply.status == 404:
            return None
        manifest = RawManifest(
            media_type_of(reply.data, _bare_type(reply), f"{self.name} {identifier}"), reply.data
        )
        promised = identifier if is_digest(identifier) else reply.headers.get("Docker-Content-Digest")
        if promised and is_digest(promised) and manifest.digest != promised:
            raise WrongBytesError(
                "the bytes of a manifest are not what its digest says",
                where=f"{self.name} {identifier}",
                expected=promised,
                found=manifest.digest,
                hint="nothing of it was kept; the registry or what stands before it changed the answer",
            )
        return manifest

    def head_manifest(self, identifier: str) -> Descriptor | None:
        """What the registry says of a tag or digest without sending it; ``None`` where it is not there.

        A claim, not a checked fact: good to see whether a tag moved, not to build on.
        """
        asked = self._ask("HEAD", identifier, self._read)
        reply = self._transport.request(replace(asked, expect=asked.expect | _NO_HEAD))
        if reply.status == 404:
            return None
        digest = reply.headers.get("Docker-Content-Digest", "")
        size = reply.headers.get("Content-Length", "")
        if is_digest(digest) and size.isdecimal():
            return Descriptor(_bare_type(reply), digest, int(size))
        found = self.find_manifest(identifier)  # a registry that leaves these headers out, or knows no HEAD
        return found.descriptor if found else None

    def find_tag(self, tag: str) -> str | None:
        """The digest that a tag leads to; None where there is none, or who may write may not read it."""
        try:
            found = self.head_manifest(tag)
        except Unavailable:
            return None
        return found.digest if found else None

    def has_blob(self, digest: str) -> bool:
        """Whether the repository holds this blob."""
        return self._has_blob(digest, self._read)

    def read_blob(self, descriptor: Descriptor, *, limit: int = 64 << 20) -> bytes:
        """A whole small blob (at most ``limit`` bytes), digest checked.

        Raises:
            ImageMismatch: it is not there, larger than ``limit``, or its bytes are wrong.
            Unavailable: as :meth:`get_manifest`.
        """
        if descriptor.size > limit:
            raise ImageMismatch(
                "a blob is larger than it may be",
                where=f"{self.name} {descriptor.digest}",
                expected=f"at most {limit} bytes",
                found=f"{descriptor.size} bytes",
            )
        return _twice(lambda: self._read_blob(descriptor))

    def _read_blob(self, descriptor: Descriptor) -> bytes:
        with self.open_blob(descriptor) as chunks:
            return b"".join(chunks)

    @contextmanager
    def open_blob(self, descriptor: Descriptor) -> Iterator[Iterator[bytes]]:
        """A blob as a stream of chunks of at most 1 MiB, size and digest checked before the last is given.

        A connection that breaks is opened again where it stopped.

        Raises:
            ImageMismatch: it is not there, or its bytes are wrong.
            Unavailable: as :meth:`get_manifest`.
        """
        chunks = self._resumed(descriptor)
        try:
            yield verified(chunks, descriptor, self.name)
        finally:
            chunks.close()

    def list_tags(self) -> list[str]:
        """The tags, at most 20 pages of a thousand; empty where the repository does not exist."""
        tags: list[str] = []
        for reply in self._pages(f"{self._root}/tags/list?n={TAGS_A_PAGE}", scopes=self._read):
            named = json_object(reply.data, f"the tags of {self.name}").get("tags")
            if isinstance(named, list):
                tags += [tag for tag in named if isinstance(tag, str) and is_tag(tag)]
        return tags

    # --- writing ------------------------------------------------------------------------------------------

    def put_blob(
        self,
        descriptor: Descriptor,
        data: bytes,
        *,
        is_new: bool = False,
        mount_from: ImageSource | None = None,
    ) -> None:
        """Store a blob held in memory, unless it is there already.

        Args:
            descriptor: what it is.
            data: its bytes.
            is_new: it is hardly there already, and so small that asking costs as much as sending.
            mount_from: where it may be already; a repository of this registry can give it without sending.

        Raises:
            ImageMismatch: ``data`` is not what the descriptor says.
            Unavailable: as :meth:`get_manifest`.
        """
        checked = tuple(verified([data], descriptor, f"for {self.name}"))
        with self._turn(descriptor.digest) as is_wanted:
            if not is_wanted:
                return
            mounted, session = self._try_mount(descriptor.digest, mount_from)
            if not mounted and (is_new or not self._there(descriptor.digest, session)):
                self._upload(descriptor, lambda: nullcontext(iter(checked)), session, _ignore)

    def copy_blob(
        self, source: ImageSource, descriptor: Descriptor, *, progress: Progress | None = None
    ) -> None:
        """Bring a blob from ``source``: nothing if it is there, a mount within one registry, else a stream.

        Raises:
            ImageMismatch: the source does not have it, or its bytes are wrong.
            Unavailable: as :meth:`get_manifest`.
        """
        with self._turn(descriptor.digest) as is_wanted:
            if is_wanted:
                self._copy_blob(source, descriptor, progress or _ignore)

    @contextmanager
    def _turn(self, digest: str) -> Iterator[bool]:
        """Whether a blob is still to be brought: by one thread at a time, and by one in all.

        While a registry stores a blob that it has already, it may for a moment not have it, and refuse the
        manifest that another thread stores then.
        """
        with self._turns.setdefault(digest, Lock()):
            yield digest not in self._stored
            self._stored.add(digest)

    def _copy_blob(self, source: ImageSource, descriptor: Descriptor, progress: Progress) -> None:
        # A mount says in one request what asking first and mounting then would take two for.
        mounted, session = self._mount(descriptor.digest, source)
        if not mounted and not self._there(descriptor.digest, session):
            self._upload(descriptor, lambda: source.open_blob(descriptor), session, progress)

    def _there(self, digest: str, session: UploadSession | None) -> bool:
        """Whether a blob is here already; the upload that was opened for it is then given up."""
        if not self._has_blob(digest, self._write):
            return False
        if session:
            session.cancel()
        return True

    def put_manifest(self, manifest: RawManifest, *, tag: str | None = None) -> Descriptor:
        """Store a manifest or index by digest, and under ``tag`` when given: an image's last request.

        Raises:
            ImageMismatch: the registry says that it stored something else.
            Unavailable: as :meth:`get_manifest`; also where a blob that it names is missing.
        """
        self._put_manifest(manifest, tag or manifest.digest)
        return manifest.descriptor

    # --- referrers ----------------------------------------------------------------------------------------

    def list_referrers(self, digest: str, *, artifact_type: str | None = None) -> list[Descriptor]:
        """What refers to the image with this digest (OCI 1.1), by the registry's API or the fallback tag.

        Args:
            digest: of the manifest or index that is referred to; it need not be there.
            artifact_type: only referrers of this type.

        Raises:
            ImageMismatch: the list is damaged.
            Unavailable: as :meth:`get_manifest`.
        """
        found = self._asked_referrers(digest)
        if found is None:
            found = self._listed_under_tag(digest)
        found = [self._described(one) for one in found[:MOST_READ_REFERRERS]] + found[MOST_READ_REFERRERS:]
        return [one for one in found if artifact_type in (None, one.artifact_type)]

    def _described(self, listed: Descriptor) -> Descriptor:
        """An entry with type and annotations: its own manifest says them where the list leaves one out."""
        if (listed.artifact_type and listed.annotations) or listed.size > LARGEST_MANIFEST:
            return listed
        manifest = self.find_manifest(listed.digest)
        return referrer_descriptor(manifest, f"{self.name}@{listed.digest}") if manifest else listed

    def put_referrer(self, manifest: RawManifest) -> Descriptor:
        """Store a manifest with a ``subject``, so that it is found from there (see :meth:`put_referrers`)."""
        (stored,) = self.put_referrers([manifest])
        return stored

    def put_referrers(self, manifests: Sequence[RawManifest]) -> list[Descriptor]:
        """Store manifests with a ``subject``, so that they are found from there. Their blobs must be there.

        Where the registry has no referrers API, the fallback tag is written too, once for all of them.
        Writers who do that at the same moment can overwrite each other (the specification has no lock):
        what was written is read again.

        Raises:
            ImageMismatch: one has no subject, or the list of referrers is damaged.
            Unavailable: as :meth:`get_manifest`; also where others keep overwriting the list.
        """
        stored: list[Descriptor] = []
        unlisted: dict[str, list[Descriptor]] = {}
        for manifest in manifests:
            subject = subject_of(manifest, f"for {self.name}")
            reply = self._put_with_subject(manifest)
            own = referrer_descriptor(manifest, f"for {self.name}")
            stored.append(own)
            if reply is None or "OCI-Subject" not in reply.headers:
                unlisted.setdefault(subject, []).append(own)
        for subject, new in unlisted.items():
            self._list_under_tag(new, subject)
        return stored

    def _put_with_subject(self, manifest: RawManifest) -> Reply | None:
        try:
            return self._put_manifest(manifest, manifest.digest)
        except Unavailable as error:
            if error.facts.get("status") not in _REFUSED_REFERRER:
                raise
            raise Unavailable(
                f"the registry takes no attestations (manifests with a subject, OCI 1.1): {error.what}",
                where=self.name,
                hint="push without them: --no-attach, and keep them as files with --attest DIR",
                facts=error.facts,
            ) from None

    def _asked_referrers(self, digest: str) -> list[Descriptor] | None:
        """The answer of the referrers API; ``None`` where the registry has none."""
        self._blob_path(digest)  # refuses what is not a digest
        found: list[Descriptor] = []
        answered = False
        where = f"the referrers of {self.name}@{digest}"
        try:
            for reply in self._pages(
                f"{self._root}/referrers/{digest}", scopes=self._read, none=_NO_REFERRERS_API
            ):
                if _bare_type(reply) != OCI_INDEX:
                    return None  # a page for people, of a registry that does not know the path
                found += listed(RawManifest(OCI_INDEX, reply.data), where)
                answered = True
        except DeniedError:
            return None  # some deny what they do not know; who may not read is told so by the tag
        return found if answered else None

    def _listed_under_tag(self, subject: str) -> list[Descriptor]:
        tag = referrers_tag(subject)
        found = self.find_manifest(tag)
        # Some take the tag for the digest, and answer with the image itself: that is not a list.
        return listed(found if found and found.digest != subject else None, f"{self.name}:{tag}")

    def _list_under_tag(self, new: Sequence[Descriptor], subject: str) -> None:
        tag = referrers_tag(subject)
        for _ in range(LIST_ATTEMPTS):
            others = self._listed_under_tag(subject)
            there = {other.digest for other in others}
            missing = [own for own in new if own.digest not in there]
            if not missing:
                return
            self._put_manifest(listing([*others, *missing]), tag)
        if self.find_tag(tag) == subject:
            raise Unavailable(
                "the registry keeps no list of what refers to an image: it has no referrers API, "
                "and takes the tag for such a list to be the image",
                where=f"{self.name}:{tag}",
                hint="push without attestations: --no-attach, and keep them as files with --attest DIR",
            )
        raise Unavailable(
            "others keep overwriting the list of referrers",
            where=f"{self.name}:{tag}",
            hint="run it again when nobody else attaches something to this image",
        )

    # --- inside -------------------------------------------------------------------------------------------

    def _pages(
        self, target: str, *, scopes: Scopes, none: frozenset[int] = frozenset({404})
    ) -> Iterator[Reply]:
        """The pages of a list, as far as :data:`MOST_PAGES`; ``none``: statuses that say there is no list."""
        following: str | None = target
        for _ in range(MOST_PAGES):
            if following is None:
                return
            request = Request("GET", following, scopes, _FOUND | none, limit=LARGEST_MANIFEST)
            reply = self._transport.request(request)
            if reply.status in none:
                return
            yield reply
            link = _NEXT_PAGE.search(reply.headers.get("Link", ""))
            following = self._transport.next_address(reply.url, link[1]) if link else None

    def _put_manifest(
        self, manifest: RawManifest, identifier: str, *, again: int = BLOB_UNKNOWN_TRIES
    ) -> Reply | None:
        """Store a manifest under a tag or its digest; ``None`` where it is stored and the answer was lost."""
        try:
            reply = self._transport.request(
                Request(
                    "PUT",
                    self._manifest_path(identifier),
                    self._write,
                    frozenset({200, 201, 202}),
                    {"Content-Type": manifest.media_type},
                    manifest.data,
                )
            )
        except Unavailable as error:
            # Another process may be storing one of its blobs again at this moment, see _turn.
            if again and "MANIFEST_BLOB_UNKNOWN" in error_codes(error):
                time.sleep(BLOB_UNKNOWN_PAUSE)
                return self._put_manifest(manifest, identifier, again=again - 1)
            if "status" in error.facts or not self._holds(identifier, manifest.digest):
                raise
            return None
        stored = reply.headers.get("Docker-Content-Digest")
        if stored and stored != manifest.digest:
            raise ImageMismatch(
                "the registry stored another manifest than it was given",
                where=f"{self.name} {identifier}",
                expected=manifest.digest,
                found=stored,
            )
        return reply

    def _ask(self, method: str, identifier: str, scopes: Scopes) -> Request:
        """A request for a manifest that may not be there."""
        path = self._manifest_path(identifier)
        return Request(method, path, scopes, _MAYBE, {"Accept": ACCEPT}, limit=LARGEST_MANIFEST)

    def _manifest_path(self, identifier: str) -> str:
        if not is_digest(identifier) and not is_tag(identifier):
            raise InvalidInput("neither a tag nor a digest", where=self.name, found=identifier)
        return f"{self._root}/manifests/{identifier}"

    def _blob_path(self, digest: str) -> str:
        if not is_digest(digest):
            raise ImageMismatch("not a digest", where=self.name, expected="sha256:…", found=digest[:100])
        return f"{self._root}/blobs/{digest}"

    def _has_blob(self, digest: str, scopes: Scopes) -> bool:
        reply = self._transport.request(Request("HEAD", self._blob_path(digest), scopes, _PERHAPS_A_BLOB))
        return reply.status == 200

    def _holds(self, identifier: str, digest: str) -> bool:
        """Whether one more look finds this manifest; not knowing is no."""
        try:
            reply = self._transport.request_once(self._ask("HEAD", identifier, self._write))
        except (TransientError, Unavailable):
            return False
        return reply.status == 200 and reply.headers.get("Docker-Content-Digest") == digest

    def _resumed(self, descriptor: Descriptor) -> Generator[bytes, None, None]:
        """The blob's bytes, unchecked; a broken connection is opened again from the byte where it stopped."""
        attempts = self._transport.attempts(f"the download of {descriptor.digest}", self.name)
        done = since_failure = 0
        while True:
            try:
                for chunk in self._from_byte(done, descriptor):
                    done += len(chunk)
                    since_failure += len(chunk)
                    yield chunk
            except TransientError as failure:
                if since_failure >= WORTH_RESUMING:
                    attempts.succeeded()
                since_failure = 0
                attempts.failed(failure)
            else:
                return

    def _from_byte(self, start: int, descriptor: Descriptor) -> Iterator[bytes]:
        headers = {"Range": f"bytes={start}-"} if start else {}
        path = self._blob_path(descriptor.digest)
        expect = frozenset({200, 206, 404, 416})
        with self._transport.open(Request("GET", path, self._read, expect, headers)) as response:
            if response.status == 404:
                raise self._blob_not_there(descriptor)
            if response.status == 416:
                return  # the blob ends before what its descriptor promises: the check says so
            skip = start - _start_of(response.headers.get("Content-Range"), response.status)
            if skip < 0:
                raise TransientError("a partial answer begins after the byte that was asked for")
            for chunk in self._transport.chunks(response):
                yield chunk[skip:]
                skip = max(0, skip - len(chunk))
            if response.length_remaining:
                raise TransientError(f"the connection ended {response.length_remaining} bytes early")

    def _mount(self, digest: str, source: ImageSource) -> tuple[bool, UploadSession | None]:
        """Ask for a neighbour's blob: whether it is ours now; if not, the upload that was opened instead.

        A neighbour whose blob was not given is not asked again: most registries mount everything or nothing.
        """
        request = self._mount_request(digest, source)
        if request is None or source.name in self._does_not_mount:
            return False, None
        try:
            reply = self._transport.request(request)
        except DeniedError:
            reply = None  # no leave for both at once: the blob is read and written instead
        return self._mounted(reply, source, self._does_not_mount)

    def _try_mount(self, digest: str, mount_from: ImageSource | None) -> tuple[bool, UploadSession | None]:
        """Like :meth:`_mount`, of a blob that is at hand: one try, and no failure of it is one."""
        request = self._mount_request(digest, mount_from)
        if mount_from is None or request is None or mount_from.name in self._not_near:
            return False, None
        try:
            return self._mounted(self._transport.request_once(request), mount_from, self._not_near)
        except (TransientError, Unavailable):
            return self._mounted(None, mount_from, self._not_near)

    def _mount_request(self, digest: str, source: ImageSource | None) -> Request | None:
        """The request for a blob of another repository of this registry; nothing else is a neighbour."""
        if not isinstance(source, Repository) or source.registry is not self.registry:
            return None
        if source.path == self.path:
            return None
        target = f"{self._root}/blobs/uploads/?mount={digest}&from={quote(source.path, safe='')}"
        expect = frozenset({201, 202, 400, 403, 404, 405, 409})
        return Request("POST", target, self._write | source._read, expect, body=b"")

    def _mounted(
        self, reply: Reply | None, source: ImageSource, others: set[str]
    ) -> tuple[bool, UploadSession | None]:
        if reply and reply.status == 201:
            return True, None
        others.add(source.name)
        opened = reply and reply.status == 202
        return False, self._session(reply) if reply and opened else None

    def _open_session(self) -> UploadSession:
        reply = self._transport.request(
            Request("POST", f"{self._root}/blobs/uploads/", self._write, frozenset({202}), body=b"")
        )
        return self._session(reply)

    def _session(self, opened: Reply) -> UploadSession:
        return UploadSession(self._transport, self._write, opened, self.registry.piece)

    def _upload(
        self,
        descriptor: Descriptor,
        opened: Callable[[], AbstractContextManager[Iterator[bytes]]],
        session: UploadSession | None,
        progress: Progress,
    ) -> None:
        """Upload what ``opened`` gives, from its start again where a session cannot be continued."""
        attempts = self._transport.attempts(f"the upload of {descriptor.digest}", self.name)
        send = send_stream
        refused = ""
        while True:
            session = session or self._open_session()
            counted = _Counted(progress)
            try:
                with opened() as chunks:
                    send(session, chunks, descriptor, counted)
            except (OverlayError, OthersFailedError):
                session.cancel()
                raise
            except PieceTooLargeError as error:
                session.cancel()
                if send is send_whole:
                    raise self._too_large(descriptor, str(error)) from None
                refused = f"{min(session.chunk, descriptor.size)} bytes at once ({error})"
                if not self._send_less(session):
                    send = send_whole
                counted.take_back()
                session = None
                continue
            except SessionLostError as error:
                send = send_whole if isinstance(error, PiecesRefusedError) else send
                failure = TransientError(f"the registry did not keep what was uploaded so far: {error}")
            except TransientError as error:
                failure = error
            else:
                if refused:
                    way = "whole" if send is send_whole else f"in pieces of {session.chunk} bytes"
                    self._transport.warn(f"{self.registry.name} refuses {refused}: blobs are sent {way}")
                return
            if self._has_blob(descriptor.digest, self._write):
                return  # stored, and only the answer was lost
            counted.take_back()
            session.cancel()
            session = None
            attempts.failed(failure)

    def _send_less(self, refused: UploadSession) -> bool:
        """Whether the next session may send smaller pieces than the one that was refused."""
        less = refused.chunk // 2
        if less < max(SMALLEST_CHUNK, refused.smallest):
            return False
        self.registry.piece = min(self.registry.piece, less)
        return True

    # --- errors -------------------------------------------------------------------------------------------

    def _too_large(self, descriptor: Descriptor, answer: str) -> Unavailable:
        return Unavailable(
            "the registry takes this blob neither in pieces nor whole",
            where=f"{self.name} {descriptor.digest}",
            expected=f"{descriptor.size} bytes in pieces of at least {SMALLEST_CHUNK}, or in one PUT",
            found=answer,
            hint="raise the limit of the registry, or of the proxy before it (nginx: client_max_body_size)",
        )

    def _not_there(self, identifier: str) -> ImageMismatch:
        where = f"{self.name} {identifier}"
        if is_digest(identifier):
            return ImageMismatch(
                "there is no image with this digest",
                where=where,
                hint="the repository may have pruned it, or it is of another repository",
            )
        try:
            tags = self.list_tags()
        except Unavailable as error:
            return ImageMismatch(
                "there is no such tag", where=where, hint=f"its tags cannot be listed: {error.what}"
            )
        from difflib import get_close_matches

        tags = [tag for tag in tags if not lists_referrers(tag)]
        nearest = get_close_matches(identifier, tags, n=NEAREST, cutoff=0.5)
        if not tags:
            hint = "this repository has no tags: check its name"
        elif nearest:
            hint = f"the nearest tags are {', '.join(nearest)}"
        else:
            more = f", and {len(tags) - MOST_TAGS} more" if len(tags) > MOST_TAGS else ""
            hint = f"there are: {', '.join(sorted(tags)[:MOST_TAGS])}{more}"
        return ImageMismatch("there is no such tag", where=where, hint=hint, facts={"nearest": nearest})

    def _blob_not_there(self, descriptor: Descriptor) -> ImageMismatch:
        return ImageMismatch(
            "a blob is not there",
            where=self.name,
            expected=f"{descriptor.digest} ({descriptor.size} bytes)",
            hint="the image is incomplete: it was pushed in part, or pruned in part",
        )


class _Counted:
    """Passes progress on, and can take it back."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._total = 0

    def __call__(self, size: int) -> None:
        self._total += size
        self._progress(size)

    def take_back(self) -> None:
        if self._total:
            self._progress(-self._total)


T = TypeVar("T")


def _twice(read: Callable[[], T]) -> T:
    """Read small things once more when their bytes are wrong: a line may damage them once, not each time."""
    try:
        return read()
    except WrongBytesError:
        return read()


def _ignore(size: int) -> None:
    """Progress that nobody wants to hear of."""


def _start_of(content_range: str | None, status: int) -> int:
    """Where a body begins in its blob; a registry may answer a range with everything."""
    if status == 200:
        return 0
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None:
        raise TransientError("a partial answer does not say which part it is")
    return int(match[1])


def _bare_type(reply: Reply) -> str:
    return reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
