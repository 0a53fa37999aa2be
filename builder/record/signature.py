"""DSSE envelopes signed with ed25519 (https://github.com/secure-systems-lab/dsse, protocol v1.0.2)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import ImageMismatch, InvalidInput
from builder.oci.model import canonical_json
from builder.record.document import PAYLOAD_TYPE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_KEY_BYTES = 16 << 10
_MAKE_KEY = "openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"


@dataclass(frozen=True)
class SigningKey:
    """An ed25519 private key; never shown."""

    private: Ed25519PrivateKey = field(repr=False)

    @property
    def key_id(self) -> str:
        return _key_id(self.private.public_key())


@dataclass(frozen=True)
class VerifyingKey:
    """An ed25519 public key."""

    public: Ed25519PublicKey = field(repr=False)

    @property
    def key_id(self) -> str:
        return _key_id(self.public)


def read_signing_key(path: Path) -> SigningKey:
    """A private key from a PEM file (PKCS #8, not encrypted).

    Raises:
        InvalidInput: it cannot be read, or is not such a key; nothing of its contents is repeated.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError) as error:
        raise _no_key(path, "a private") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "a private")
    return SigningKey(key)


def read_verifying_key(path: Path) -> VerifyingKey:
    """A public key from a PEM file.

    Raises:
        InvalidInput: it cannot be read, or is not such a key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, TypeError) as error:
        raise _no_key(path, "a public") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "a public")
    return VerifyingKey(key)


def sign(payload: bytes, key: SigningKey) -> bytes:
    """A DSSE envelope around an in-toto statement; ed25519 is deterministic, so the envelope is too."""
    signature = key.private.sign(_authenticated(PAYLOAD_TYPE, payload))
    return canonical_json(
        {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": key.key_id, "sig": base64.b64encode(signature).decode()}],
        }
    )


def open_envelope(envelope: bytes, key: VerifyingKey, where: str) -> bytes | None:
    """The payload of an envelope that ``key`` signed; None where it did not sign it.

    Raises:
        ImageMismatch: it is not an envelope, or a signature under the key's own id is wrong.
    """
    from cryptography.exceptions import InvalidSignature

    payload_type, payload, signatures = _parts(envelope, where)
    for key_id, signature in signatures:
        try:
            key.public.verify(signature, _authenticated(payload_type, payload))
        except InvalidSignature:
            if key_id == key.key_id:
                raise ImageMismatch(
                    "a signature is wrong: the attestation was changed, or signed by somebody else",
                    where=where,
                    expected=f"a signature by key {key.key_id[:16]}…",
                ) from None
        else:
            return payload
    return None


def _parts(envelope: bytes, where: str) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    try:
        value: Any = json.loads(envelope)
        payload = base64.b64decode(value["payload"], validate=True)
        signatures = [
            (str(entry.get("keyid", "")), base64.b64decode(entry["sig"], validate=True))
            for entry in value["signatures"]
        ]
        payload_type = value["payloadType"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise ImageMismatch("not a DSSE envelope", where=where, found=repr(envelope[:60])) from error
    if payload_type != PAYLOAD_TYPE:
        raise ImageMismatch(
            "an envelope of another type", where=where, expected=PAYLOAD_TYPE, found=str(payload_type)[:100]
        )
    return PAYLOAD_TYPE, payload, signatures


def _authenticated(payload_type: str, payload: bytes) -> bytes:
    """PAE: what is signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _key_id(public: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    data = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(data).hexdigest()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_KEY_BYTES)
    except OSError as error:
        raise InvalidInput("key cannot be read", where=str(path), found=error.strerror) from error


def _no_key(path: Path, which: str) -> InvalidInput:
    return InvalidInput(
        "this is not a key that can be used",
        where=str(path),
        expected=f"{which} ed25519 key in PEM, not encrypted",
        hint=f"make one: {_MAKE_KEY}",
    )
