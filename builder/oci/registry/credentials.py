"""Logins for registries, as ``docker login`` and ``podman login`` left them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import Unavailable
from builder.oci.reference import DEFAULT_REGISTRY

DOCKER_HUB_KEYS = ("https://index.docker.io/v1/", "index.docker.io", "docker.io", "registry-1.docker.io")
HELPER_TIMEOUT = 60.0  # seconds; a helper may ask its user


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
            hint="repair or remove it",
        ) from None
    return config if isinstance(config, dict) else {}


def _login(config: Mapping[str, object], key: str, path: Path, warn: Callable[[str], None]) -> Login | None:
    entry = _mapping(_mapping(config, "auths"), key)
    if token := entry.get("identitytoken"):
        return Login("", str(token), str(path))
    if basic := entry.get("auth"):
        return _decode(basic, path)
    listed = key in _mapping(config, "auths")
    helper = _mapping(config, "credHelpers").get(key) or (listed and config.get("credsStore"))
    if not helper:
        return None
    program = f"docker-credential-{helper}"
    installed = shutil.which(program)
    if installed is None:
        warn(f"{path} names the credential helper {program} for {key}, which is not installed")
        return None
    login = _ask_helper(program, installed, key, path)
    if login is None:
        warn(f"the credential helper {program} that {path} names has no login for {key}")
    return login


def _ask_helper(program: str, path_to_it: str, key: str, file: Path) -> Login | None:
    """What ``docker-credential-X get`` says of a registry; None where it has no login.

    It reads the registry's key and writes JSON, or a message and a status other than 0
    (https://github.com/docker/docker-credential-helpers, "Development").
    """
    unusable = Unavailable(
        f"the credential helper {program} gave no usable answer",
        where=f"{key} in {file}",
        hint=f"log in again: docker login {key}",
    )
    try:
        done = subprocess.run(
            [path_to_it, "get"], input=key.encode(), capture_output=True, check=False, timeout=HELPER_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        raise unusable from None  # what the helper was given and wrote stays out of every message
    if done.returncode:
        return None
    try:
        answer = json.loads(done.stdout)
        user, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError):
        raise unusable from None
    if not (isinstance(user, str) and isinstance(secret, str)):
        raise unusable
    return _login_of(user, secret, file)


def _decode(basic: object, path: Path) -> Login:
    try:
        user, _, secret = base64.b64decode(str(basic), validate=True).decode().partition(":")
    except ValueError:
        raise Unavailable(
            "a registry login is damaged",
            where=str(path),
            expected="base64 of user:password",
            hint="log in again",
        ) from None
    return _login_of(user, secret, path)


def _login_of(user: str, secret: str, path: Path) -> Login:
    identity_token = user == "<token>"  # what credential helpers call it
    return Login("" if identity_token else user, secret, str(path))


def _mapping(config: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}
