"""Logins for registries, as ``docker login`` and ``podman login`` left them. oras resolves them."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import Unavailable
from builder.oci.reference import DEFAULT_REGISTRY

DOCKER_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")


@dataclass(frozen=True)
class Login:
    """A user and a secret for one registry, and the file that holds or names them.

    ``user`` is empty where ``secret`` is an identity token (OAuth 2 refresh token).
    """

    user: str
    secret: str = field(repr=False)
    origin: str

    @property
    def basic(self) -> str:
        """The value of a ``Basic`` authorization header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()

    def __str__(self) -> str:
        return f"{self.user or 'token'} from {self.origin}"


def config_files(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Where logins are kept, the one that counts first: Docker's file, then podman's."""
    home = Path(environment.get("HOME") or Path.home())
    docker = Path(environment.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    containers = environment.get("REGISTRY_AUTH_FILE")
    runtime = environment.get("XDG_RUNTIME_DIR")
    files = [docker]
    if containers:
        files.append(Path(containers))
    elif runtime:
        files.append(Path(runtime) / "containers" / "auth.json")
    return files


def find_login(registry: str, files: list[Path], warn: Callable[[str], None]) -> Login | None:
    """The first login for ``registry`` in ``files``; ``None`` where there is none.

    oras is imported only when a file speaks of this registry: it costs more time than a whole push.

    Raises:
        Unavailable: a file or credential helper that speaks of the registry cannot be used.
    """
    for path in files:
        config = _read_config(path)
        for key in _keys(registry):
            if login := _login(config, key, path, warn):
                return login
    return None


def _keys(registry: str) -> tuple[str, ...]:
    if registry == DEFAULT_REGISTRY:
        return DOCKER_HUB_KEYS
    return (registry, f"https://{registry}", f"https://{registry}/", f"https://{registry}/v1/")


def _read_config(path: Path) -> dict[str, object]:
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise Unavailable(
            "the file of registry logins cannot be read",
            where=str(path),
            found=reason,
            hint="mend or remove it",
        ) from None
    return config if isinstance(config, dict) else {}


def _login(config: Mapping[str, object], key: str, path: Path, warn: Callable[[str], None]) -> Login | None:
    entry = _mapping(_mapping(config, "auths"), key)
    if token := entry.get("identitytoken"):  # oras knows only user and password
        return Login("", str(token), str(path))
    if entry.get("auth"):
        return _decode(_ask_oras(config, key, path), path)
    listed = key in _mapping(config, "auths")
    helper = _mapping(config, "credHelpers").get(key) or (listed and config.get("credsStore"))
    if not helper:
        return None
    program = f"docker-credential-{helper}"
    from shutil import which

    if which(program) is None:
        warn(f"{path} names the credential helper {program} for {key}, which is not installed")
        return None
    basic = _ask_oras(config, key, path)
    if basic is None:
        warn(f"the credential helper {program} that {path} names has no login for {key}")
    return _decode(basic, path)


def _ask_oras(config: Mapping[str, object], key: str, path: Path) -> str | None:
    """oras's answer: base64 of user and password, read from the file or from a credential helper."""
    from oras.auth.base import AuthBackend
    from oras.container import Container
    from oras.logger import logger

    logger.set_level(logging.CRITICAL)  # it would print; what matters is warned of here
    container = Container("any/name")
    container.registry = key
    backend = AuthBackend()
    # Given beforehand, since load_configs would always mix in the file of the home directory.
    backend._auth_config = {
        "auths": {**_mapping(config, "auths")},
        "credHelpers": _mapping(config, "credHelpers"),
        "credsStore": config.get("credsStore"),
    }
    try:
        backend.load_configs(container)
    except (KeyError, ValueError, OSError):
        raise Unavailable(
            "the credential helper for a registry gave no usable answer",
            where=f"{key} in {path}",
            hint=f"log in again: docker login {key}",
        ) from None
    basic = getattr(backend, "_basic_auth", None)
    return basic if isinstance(basic, str) else None


def _decode(basic: str | None, path: Path) -> Login | None:
    if basic is None:
        return None
    try:
        user, _, secret = base64.b64decode(basic, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unavailable(
            "a registry login is damaged",
            where=str(path),
            expected="base64 of user:password",
            hint="log in again",
        ) from None
    if user == "<token>":  # what credential helpers call an identity token
        return Login("", secret, str(path))
    return Login(user, secret, str(path))


def _mapping(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}
