"""What others can read of an image: provenance, patches and a bill of materials, signed and attached."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from oras.client import OrasClient

from tests.conftest import Overlay
from tests.integration.bases import Base
from tests.integration.conftest import Registry, needed_program, run_program, with_sources
from tests.integration.judge import OVERLAY, series_of

TRUST = Path(__file__).parents[2] / "docs" / "trust.md"

# The structure that slsa.dev/spec/v1.0/provenance and in-toto's Statement v1 publish, as a JSON Schema.
DIGEST_SET = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": {"type": "string", "pattern": "^[0-9a-f]+$"},
}
RESOURCE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "uri": {"type": "string", "format": "uri", "pattern": "^[a-z+]+:"},
        "digest": DIGEST_SET,
        "content": {"type": "string"},
        "downloadLocation": {"type": "string"},
        "mediaType": {"type": "string"},
        "annotations": {"type": "object"},
    },
    "additionalProperties": False,
    "anyOf": [{"required": ["uri"]}, {"required": ["digest"]}, {"required": ["content"]}],
}
STATEMENT = {
    "type": "object",
    "required": ["_type", "subject", "predicateType", "predicate"],
    "additionalProperties": False,
    "properties": {
        "_type": {"const": "https://in-toto.io/Statement/v1"},
        "subject": {"type": "array", "minItems": 1, "items": {**RESOURCE, "required": ["digest"]}},
        "predicateType": {"type": "string", "pattern": "^https://"},
        "predicate": {"type": "object"},
    },
}
PROVENANCE = {
    "type": "object",
    "required": ["buildDefinition", "runDetails"],
    "additionalProperties": False,
    "properties": {
        "buildDefinition": {
            "type": "object",
            "required": ["buildType", "externalParameters"],
            "additionalProperties": False,
            "properties": {
                "buildType": {"type": "string", "pattern": "^https://"},
                "externalParameters": {"type": "object", "minProperties": 1},
                "internalParameters": {"type": "object"},
                "resolvedDependencies": {"type": "array", "items": RESOURCE},
            },
        },
        "runDetails": {
            "type": "object",
            "required": ["builder"],
            "additionalProperties": False,
            "properties": {
                "builder": {
                    "type": "object",
                    "required": ["id"],
                    "additionalProperties": False,
                    "properties": {
                        "id": {"type": "string", "pattern": "^https://"},
                        "builderDependencies": {"type": "array", "items": RESOURCE},
                        "version": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                },
                "metadata": {"type": "object"},
                "byproducts": {"type": "array", "items": RESOURCE},
            },
        },
    },
}
SLSA = "https://slsa.dev/provenance/v1"


@dataclass(frozen=True)
class Keys:
    private: Path
    public: Path

    @classmethod
    def make(cls, directory: Path, algorithm: str = "ed25519") -> Keys:
        openssl = needed_program("openssl")
        keys = cls(directory / f"{algorithm}.pem", directory / f"{algorithm}.pub")
        subprocess.run(
            [openssl, "genpkey", "-algorithm", algorithm, "-out", keys.private],
            check=True,
            capture_output=True,
        )
        subprocess.run([openssl, "pkey", "-in", keys.private, "-pubout", "-out", keys.public], check=True)
        return keys


@dataclass(frozen=True)
class Attested:
    """An image that was pushed with attestations, signed and not."""

    overlay: Overlay
    base: str
    wheel: Path
    registry: Registry
    digest: str
    files: Path
    keys: Keys

    @property
    def reference(self) -> str:
        return f"{self.registry.repository('out')}@{self.digest}"

    def build(self, *options: object) -> Any:
        return self.overlay("build", OVERLAY, "--base", self.base, "--wheel", self.wheel, "--json", *options)

    def document(self, name: str) -> Any:
        return json.loads((self.files / name).read_bytes())

    def statement(self, name: str) -> Any:
        """What is in an envelope."""
        return json.loads(base64.b64decode(self.document(name)["payload"]))


@pytest.fixture(scope="module")
def attested(
    small_base: Base,
    wheel: Callable[[str], Path],
    skopeo: Callable[..., str],
    sources_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Attested:
    import uuid

    from tests.integration.conftest import registry_address, registry_log

    registry = Registry(registry_address(), "a" + uuid.uuid4().hex[:12], registry_log())
    directory = tmp_path_factory.mktemp("attest")
    overlay, keys = with_sources(Overlay.prepare(directory), sources_cache), Keys.make(directory)
    base = small_base.push(skopeo, registry.repository("base"))
    made = Attested(overlay, base, wheel("0.5.20"), registry, "", directory / "files", keys)
    options = (
        "--push",
        f"{registry.repository('out')}:x",
        "--attest",
        made.files,
        "--sign-key",
        keys.private,
    )
    digest = made.build(*options).check().json["digest"]
    return Attested(overlay, base, made.wheel, registry, digest, made.files, keys)


def fallback(attested: Attested) -> list[dict[str, Any]]:
    """The referrers as anybody finds them who knows the specification: plain HTTP, by the fallback tag."""
    data, media_type = attested.registry.manifest("out", attested.digest.replace(":", "-"))
    assert media_type == "application/vnd.oci.image.index.v1+json"
    return list(json.loads(data)["manifests"])


def artifact(attested: Attested, entry: dict[str, Any]) -> bytes:
    data, _ = attested.registry.manifest("out", entry["digest"])
    manifest = json.loads(data)
    assert manifest["subject"]["digest"] == attested.digest
    assert manifest["artifactType"] == entry["artifactType"]
    (layer,) = manifest["layers"]
    return attested.registry.blob("out", layer["digest"])


def test_referrers_are_found_through_the_fallback_tag_and_are_the_files(attested: Attested) -> None:
    entries = fallback(attested)
    attached = sorted(hashlib.sha256(artifact(attested, entry)).hexdigest() for entry in entries)
    written = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in attested.files.iterdir())
    assert attached == written
    assert len(written) == 4
    assert {entry["artifactType"] for entry in entries} == {
        "application/vnd.in-toto+json",
        "application/vnd.cyclonedx+json",
    }


def test_oras_writes_each_statement_under_its_name(attested: Attested, tmp_path: Path) -> None:
    client = OrasClient(hostname=attested.registry.address, insecure=True)
    for entry in fallback(attested):
        client.pull(f"{attested.registry.repository('out')}@{entry['digest']}", outdir=str(tmp_path))
    assert files_of(tmp_path) == files_of(attested.files)


def test_the_documented_commands_fetch_each_statement(attested: Attested, tmp_path: Path) -> None:
    """docs/trust.md, on a registry without the referrers API."""
    for program in ("curl", "jq"):
        needed_program(program)
    (script,) = re.findall(r"```sh\n(repository=.*?)```", TRUST.read_text(), re.DOTALL)
    registry = attested.registry
    script = script.replace(
        "https://registry.example/v2/sglang", f"http://{registry.address}/v2/{registry.space}/out"
    )
    script = script.replace("sha256:DIGEST", attested.digest)
    run_program(["bash", "-euc", script], cwd=tmp_path)
    assert files_of(tmp_path) == files_of(attested.files)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_skopeo_reads_the_image_and_its_attestations(attested: Attested, skopeo: Callable[..., str]) -> None:
    image = json.loads(skopeo("inspect", "--raw", f"docker://{attested.reference}"))
    assert image["layers"]
    for entry in fallback(attested):
        where = f"docker://{attested.registry.repository('out')}@{entry['digest']}"
        assert json.loads(skopeo("inspect", "--raw", where))["subject"]["digest"] == attested.digest


def test_provenance_has_the_published_structure_and_names_every_material(attested: Attested) -> None:
    statement = attested.statement("provenance.dsse.json")
    jsonschema.validate(statement, STATEMENT)
    jsonschema.validate(statement["predicate"], PROVENANCE)
    assert statement["predicateType"] == SLSA
    assert statement["subject"][0]["digest"] == {"sha256": attested.digest.removeprefix("sha256:")}
    materials = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    digests = {material["name"]: material["digest"] for material in materials}
    assert digests["base"] == {"sha256": attested.base.partition("@sha256:")[2]}
    assert digests["upstream"] == {"gitCommit": "94602c9c2b7cbdb8efd5c52802dac6a1c180089e"}
    for patch in series_of(OVERLAY):
        assert digests[patch.name] == {"sha256": hashlib.sha256(patch.read_bytes()).hexdigest()}


def test_the_applied_patches_are_the_manifest_in_the_image(attested: Attested) -> None:
    statement = attested.statement("patches.dsse.json")
    jsonschema.validate(statement, STATEMENT)
    shown = attested.overlay("inspect", attested.reference, "--full", "--json").check().json
    assert statement["predicate"] == shown["contents"]


def test_bill_of_materials_passes_the_librarys_own_validation(attested: Attested) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    data = (attested.files / "materials.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data) is None


def test_every_patch_is_in_sglangs_pedigree_with_its_diff_and_bugs(attested: Attested) -> None:
    bom = attested.document("materials.cdx.json")
    (sglang,) = bom["components"]
    assert (sglang["name"], sglang["version"]) == ("sglang", "0.5.20")
    assert sglang["pedigree"]["commits"][0]["uid"] == "94602c9c2b7cbdb8efd5c52802dac6a1c180089e"
    patches = {base64.b64decode(p["diff"]["text"]["content"]): p for p in sglang["pedigree"]["patches"]}
    for path in series_of(OVERLAY):
        data = path.read_bytes()
        patch = patches.pop(data)
        bugs = {line.partition(": ")[2] for line in data.decode().splitlines() if line.startswith("Bug: ")}
        assert {issue["source"]["url"] for issue in patch.get("resolves", ())} == bugs
        assert patch["type"] == ("backport" if b"Upstream-Status: Backport" in data else "unofficial")
    assert patches == {}
    assert bom["metadata"]["component"]["hashes"] == [
        {"alg": "SHA-256", "content": attested.digest.removeprefix("sha256:")}
    ]


def test_the_same_build_attests_the_same_bytes(attested: Attested, tmp_path: Path) -> None:
    target = f"{attested.registry.repository('again')}:x"
    options = ("--push", target, "--attest", tmp_path / "again", "--sign-key", attested.keys.private)
    attested.build(*options).check()
    for path in attested.files.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_attaching_again_from_the_image_alone_changes_nothing(attested: Attested) -> None:
    before = fallback(attested)
    run = attested.overlay(
        "attest", attested.reference, "--sign-key", attested.keys.private, "--json"
    ).check()
    assert fallback(attested) == before
    listed = run.json[attested.digest]
    assert [entry["digest"] for entry in listed] == [entry["digest"] for entry in before]
    assert SLSA in [entry["predicate_type"] for entry in listed]


def test_signatures_are_ed25519_over_the_dsse_encoding(attested: Attested, tmp_path: Path) -> None:
    """Checked by openssl, which knows nothing of overlay."""
    envelope = attested.document("provenance.dsse.json")
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    signed = tmp_path / "signed"
    signed.write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    signature = tmp_path / "signature"
    signature.write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = [needed_program("openssl"), "pkeyutl", "-verify", "-pubin", "-inkey", attested.keys.public]
    subprocess.run(
        [*command, "-rawin", "-in", signed, "-sigfile", signature], check=True, capture_output=True
    )


@pytest.mark.parametrize("name", ["provenance.dsse.json", "patches.dsse.json"])
def test_securesystemslib_verifies_what_cosign_would(
    attested: Attested, skopeo: Callable[..., str], name: str
) -> None:
    """What ``verify-blob-attestation`` looks at (docs/trust.md): signature, type, the manifest's digest."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import SSlibKey

    envelope = attested.document(name)
    public = load_pem_public_key(attested.keys.public.read_bytes())
    assert isinstance(public, Ed25519PublicKey)
    key = SSlibKey.from_crypto(public, keyid=envelope["signatures"][0]["keyid"])
    signed = Envelope.from_dict(copy.deepcopy(envelope))
    assert list(signed.verify([key], 1)) == [key.keyid]
    assert signed.payload_type == "application/vnd.in-toto+json"

    statement = json.loads(signed.payload)
    assert statement["predicateType"] == attested.statement(name)["predicateType"]
    manifest = skopeo("inspect", "--raw", f"docker://{attested.reference}").encode()
    assert {"sha256": hashlib.sha256(manifest).hexdigest()} in [one["digest"] for one in statement["subject"]]

    signed.payload = signed.payload.replace(b"sha256", b"sha257", 1)
    with pytest.raises(VerificationError):
        signed.verify([key], 1)


def test_verify_with_the_key(attested: Attested) -> None:
    attested.overlay("verify", attested.reference, "--key", attested.keys.public).check()


def test_verify_with_another_key(attested: Attested, tmp_path: Path) -> None:
    other = Keys.make(tmp_path)
    run = attested.overlay("verify", attested.reference, "--key", other.public, "--json").check(5)
    deviations = run.json["error"]["deviations"]
    assert {deviation["kind"] for deviation in deviations} == {"signature"}
    assert SLSA in run.err


def test_attestations_of_another_image_do_not_count(attested: Attested, skopeo: Callable[..., str]) -> None:
    """Somebody hangs one image's signed statements onto another image."""
    from builder.oci.reference import parse_reference
    from builder.oci.registry.client import Network
    from builder.publish.attach import attach_documents
    from builder.record.document import Document

    spec = attested.overlay.directory / "overlays" / f"{OVERLAY}.yaml"
    text = spec.read_text()
    spec.write_text(text.replace("series: v0.5.20", "series: v0.5.20\n  except: [shm-broadcast-host-ip]"))
    try:
        target = f"{attested.registry.repository('other')}:x"
        digest = attested.build("--push", target, "--no-attach").check().json["digest"]
    finally:
        spec.write_text(text)
    assert attested.registry.tags("other") == ["x"]
    stolen = tuple(
        Document(path.name, "application/vnd.dsse.envelope.v1+json", "x", path.read_bytes())
        for path in attested.files.glob("*.dsse.json")
    )
    with Network(warn=print) as network:
        repository = network.repository(parse_reference(target))
        attach_documents(repository, repository.get_manifest(digest).descriptor, stolen)
    run = attested.overlay("verify", target, "--key", attested.keys.public, "--json").check(5)
    assert "about another image" in run.err


def test_an_envelope_changed_after_signing(attested: Attested) -> None:
    from builder.errors import ImageMismatch
    from builder.record.signature import open_envelope, read_verifying_key

    envelope = attested.document("provenance.dsse.json")
    changed = base64.b64decode(envelope["payload"]).replace(b"glm53", b"glm54")
    envelope["payload"] = base64.b64encode(changed).decode()
    key = read_verifying_key(attested.keys.public)
    with pytest.raises(ImageMismatch, match="signature is wrong"):
        open_envelope(json.dumps(envelope).encode(), key, "here")


@pytest.mark.parametrize("algorithm", ["x25519", "ed448"])
def test_another_kind_of_key_is_refused(attested: Attested, tmp_path: Path, algorithm: str) -> None:
    other = Keys.make(tmp_path, algorithm)
    run = attested.build("--dry-run", "--sign-key", other.private).check(1)
    assert "ed25519" in run.err
    assert "PRIVATE" not in run.err


def test_attestations_of_a_layout_lie_in_the_layout(attested: Attested, tmp_path: Path) -> None:
    out = f"oci:{tmp_path / 'image'}"
    digest = attested.build("--output", out).check().json["digest"]
    attested.overlay("attest", out).check()
    listed = attested.overlay("attest", out, "--list", "--json").check().json
    assert len(listed[digest]) == 4
    attested.overlay("verify", out, "--base", attested.base).check()


def test_inspect_by_labels_is_one_manifest_and_one_config(attested: Attested) -> None:
    before = len(attested.registry.requests())
    shown = attested.overlay("inspect", attested.reference, "--json").check().json
    requests = [line for line in attested.registry.requests()[before:] if "/out/" in line]
    assert len(requests) == 2, requests
    assert "/manifests/" in requests[0]
    assert "/blobs/" in requests[1]
    assert shown["name"] == OVERLAY
    assert shown["patches"] == [path.stem for path in series_of(OVERLAY)]


def test_inspect_of_an_image_that_others_made(attested: Attested) -> None:
    assert "not made by overlay" in attested.overlay("inspect", attested.base).check(5).err
