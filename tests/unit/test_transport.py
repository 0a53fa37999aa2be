"""Where a request goes, what it carries there, and what an answer may make us do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import Unavailable
from builder.oci.registry.auth import TokenRequest, parse_challenges
from builder.oci.registry.credentials import Login, config_files, find_login
from builder.oci.registry.transport import (
    Connections,
    NetworkSettings,
    Transport,
    proxy_for,
    registry_message,
    same_origin,
    shown,
)


def transport(registry: str, *insecure: str) -> Transport:
    settings = NetworkSettings(insecure=frozenset(insecure))
    return Transport(registry, settings, Connections(settings), pytest.fail)


@pytest.mark.parametrize(
    ("registry", "base"),
    [
        ("docker.io", "https://registry-1.docker.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("localhost:5000", "http://localhost:5000"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("127.8.9.10:80", "http://127.8.9.10:80"),
        ("[::1]:5000", "http://[::1]:5000"),
        ("127.0.0.1.example.org", "https://127.0.0.1.example.org"),
        ("localhost.example.org", "https://localhost.example.org"),
        ("10.0.0.1:5000", "https://10.0.0.1:5000"),
        ("plain.example.org:5000", "http://plain.example.org:5000"),
    ],
)
def test_only_loopback_and_what_is_named_goes_without_tls(registry: str, base: str) -> None:
    assert transport(registry, "plain.example.org:5000").base == base


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("/v2/x", "https://r.org/v2/x"),
        ("https://cdn.org/x?sig=1", "https://cdn.org/x?sig=1"),
        ("http://r.org/v2/x", "https://r.org/v2/x"),  # a registry that does not know of the TLS before it
        ("//cdn.org/x", "https://cdn.org/x"),
    ],
)
def test_a_location_leads_to_https(location: str, leads_to: str) -> None:
    assert transport("r.org").next_address("https://r.org/v2/y", location) == leads_to


@pytest.mark.parametrize(
    "location",
    ["http://cdn.org/x", "ftp://r.org/x", "file:///etc/passwd", "https://u:p@r.org/x", "https://r.org/\u00fc",
     "https://r.org/ x", "", None],
)  # fmt: skip
def test_a_location_that_leads_elsewhere_is_refused(location: str | None) -> None:
    with pytest.raises(Unavailable, match="not safe to follow"):
        transport("r.org").next_address("https://r.org/v2/y", location)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert same_origin("https://r.org/a", "https://R.org:443/b")
    for other in ("http://r.org", "https://r.org:444", "https://r.org.evil.org", "https://evil.org/r.org"):
        assert not same_origin("https://r.org", other)


def test_no_signature_is_shown() -> None:
    assert shown("/v2/a/b/blobs/uploads/1?_state=secret") == "a/b/blobs/uploads/1"
    assert shown("https://cdn.org/x/y?X-Signature=secret#secret") == "cdn.org/x/y"
    assert shown("https://user:secret@cdn.org/x") == "cdn.org/x"


def test_a_registrys_words_are_shortened_and_made_plain() -> None:
    data = json.dumps({"errors": [{"code": "DENIED", "message": "no\x1b[31m\n" + "x" * 1000}]}).encode()
    message = registry_message(data)
    assert message.startswith("(DENIED no [31m ")
    assert len(message) <= 302
    assert message.isprintable()


@pytest.mark.parametrize(
    "data", [b"", b"<html>", b"[]", b'{"errors":1}', b'{"errors":[1]}', b"\xff", b'{"errors":[]}']
)
def test_what_is_no_registrys_error_says_nothing(data: bytes) -> None:
    assert registry_message(data) == ""


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.org:3128")
    monkeypatch.setenv("NO_PROXY", "near.org")
    assert proxy_for("https", "r.org") == "http://proxy.org:3128"
    assert proxy_for("http", "r.org") is None
    assert proxy_for("https", "near.org") is None
    assert proxy_for("https", "localhost:5000") is None


# --- challenges ------------------------------------------------------------------------------------------


def test_challenges_are_read() -> None:
    bearer, basic = parse_challenges(
        [
            'Bearer realm="https://auth.org/token", service="r.org",scope="repository:a/b:pull,push"',
            "basic realm=x",
        ]
    )
    assert bearer.scheme == "bearer"
    assert bearer.parameters == {
        "realm": "https://auth.org/token",
        "service": "r.org",
        "scope": "repository:a/b:pull,push",
    }
    assert (basic.scheme, basic.parameters) == ("basic", {"realm": "x"})


BEARER = 'Bearer realm="https://auth.org/t",service="r.org",error="a \\"b\\", c=d"'


@pytest.mark.parametrize(
    "header",
    [
        f'Basic realm="a, b", {BEARER}',
        f'{BEARER}, Basic realm="a, b"',
        f'Negotiate, {BEARER} , ,Basic realm="a, b"',
        f'NTLM TlRMTVNTUAAC==, Basic realm="a, b",{BEARER}',
        f'Digest realm="x", nonce=abc, Basic realm = "a, b" , {BEARER}',
    ],
)
def test_a_header_may_hold_several_challenges_in_any_order(header: str) -> None:
    """RFC 9110, 11.6.1: commas stand between challenges as between the parameters of one."""
    found = {challenge.scheme: challenge.parameters for challenge in parse_challenges([header])}
    assert found == {
        "basic": {"realm": "a, b"},
        "bearer": {"realm": "https://auth.org/t", "service": "r.org", "error": 'a "b", c=d'},
    }


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "[::1]",
        "[fe80::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "localhost",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_registry_elsewhere_leads_nobody_to_this_machine_or_its_network_link(
    scheme: str, host: str
) -> None:
    elsewhere = transport("192.0.2.7:5000", "192.0.2.7:5000")
    with pytest.raises(Unavailable, match="address of this machine or its network link"):
        elsewhere.next_address("http://192.0.2.7:5000/v2/x", f"{scheme}://{host}:8080/x")
    with pytest.raises(Unavailable, match="an address of this machine"):
        elsewhere._ask_for_token(TokenRequest(f"{scheme}://{host}:8080/token", (), None))
    here = transport("127.0.0.1:5000")
    assert here.next_address("http://127.0.0.1:5000/v2/x", f"{scheme}://{host}:8080/x")
    assert elsewhere.next_address("http://192.0.2.7:5000/v2/x", "http://192.0.2.8/x") == "http://192.0.2.8/x"


@pytest.mark.parametrize("header", ["", "Bearer", "Negotiate abc", "Digest realm=x", "\x00"])
def test_challenges_nobody_here_can_meet_are_left_out(header: str) -> None:
    assert parse_challenges([header]) == []


def test_a_login_is_not_sent_over_http_for_a_registry_with_tls() -> None:
    login = Login("alice", "secret", "config.json")
    for realm in ("http://auth.org/token", "ftp://auth.org", "/token", "https://[::1", "https://r:99999/"):
        with pytest.raises(Unavailable, match=r"not https|no usable address") as refused:
            transport("r.org")._ask_for_token(TokenRequest(realm, (), login))
        assert "secret" not in json.dumps(refused.value.as_json())


# --- logins ----------------------------------------------------------------------------------------------


def test_a_login_never_shows_its_secret() -> None:
    login = Login("alice", "secret", "config.json")
    assert "secret" not in repr(login)
    assert str(login) == "alice from config.json"


def test_logins_are_looked_for_where_docker_and_podman_keep_them(tmp_path: Path) -> None:
    home = {"HOME": "/home/a"}
    assert config_files(home) == [Path("/home/a/.docker/config.json")]
    assert config_files({**home, "DOCKER_CONFIG": "/d", "XDG_RUNTIME_DIR": "/run/u"}) == [
        Path("/d/config.json"),
        Path("/run/u/containers/auth.json"),
    ]
    assert config_files({**home, "REGISTRY_AUTH_FILE": "/f"})[1] == Path("/f")


@pytest.mark.parametrize(
    ("registry", "key"),
    [
        ("ghcr.io", "ghcr.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("docker.io", "https://index.docker.io/v1/"),
        ("docker.io", "docker.io"),
        ("localhost:5000", "localhost:5000"),
    ],
)
def test_a_login_is_found_under_the_names_clients_write(tmp_path: Path, registry: str, key: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {key: {"auth": "YWxpY2U6cDphc3M="}}}))
    login = find_login(registry, [tmp_path / "missing.json", path], pytest.fail)
    assert login == Login("alice", "p:ass", str(path))


def test_a_file_that_speaks_of_others_gives_no_login_and_imports_nothing(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"auths": {"ghcr.io": {"auth": "YTpi"}}, "credsStore": "x", "credHelpers": {"y": "z"}})
    )
    script = f"""
import sys
from pathlib import Path
from builder.oci.registry.credentials import find_login
assert find_login("r.org", [Path({str(path)!r})], print) is None
assert not any(name.split(".")[0] in ("requests", "docker") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_file_with_strange_shapes_gives_no_login(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    contents: list[object] = [
        [],
        {"auths": []},
        {"auths": {"r.org": 1}},
        {"auths": {"r.org": {}}},
        {"credHelpers": 1},
    ]
    for content in contents:
        path.write_text(json.dumps(content))
        assert find_login("r.org", [path], pytest.fail) is None
