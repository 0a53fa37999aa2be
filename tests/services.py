"""Run a command with a real registry and a real Docker Engine beside it, then stop what was started.

    python tests/services.py pytest tests/integration
    python tests/services.py bash                      # to look around

A Docker Engine that already answers (``DOCKER_HOST``, else ``/var/run/docker.sock``) is used as it is.
Otherwise root on Debian gets the missing packages from apt, and a private ``dockerd`` with its own socket and
storage. Beside it runs a newer one that keeps images as blobs in containerd, as new installations do; it is
unpacked below ``build/``, not installed. The registry is always a private ``docker-registry`` on a free
loopback port. The command finds the addresses in its environment (the ``OVERLAY_TEST_*`` names below) and in
``services.env`` of the state directory.

What cannot be had is said before the command starts. The tests that want it are then skipped, unless
``CI=true``: there it is a failure. Standard library only, so that it runs before anything is installed.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

REGISTRY = "OVERLAY_TEST_REGISTRY"  # host:port
REGISTRY_LOG = "OVERLAY_TEST_REGISTRY_LOG"  # its access log, one request a line
DOCKER_HOST = "OVERLAY_TEST_DOCKER_HOST"  # unix:///… or tcp://…
BLOB_ENGINE = "OVERLAY_TEST_BLOB_ENGINE"  # unix://… of an engine that keeps images as blobs
DOCKER_CLIENT = "OVERLAY_TEST_DOCKER_CLIENT"  # a client that can build with BuildKit
PRIVATE_ENGINE = "OVERLAY_TEST_PRIVATE_ENGINE"  # set to 1 to be given an engine that nobody else uses

# Debian's package for each program.
# faketime runs a build under another clock; openssl makes certificates for registries of the tests.
# quilt, StGit and patch read the patches that we write. chromium shows the page of `overlay diff --html`;
# docker-compose and systemd-analyze read what `overlay launch` prints; man, zsh and fish read what the wheel
# brings.
PACKAGES = {
    "dockerd": "docker.io",
    "docker-registry": "docker-registry",
    "skopeo": "skopeo",
    "buildah": "buildah",
    "podman": "podman",
    "umoci": "umoci",
    "faketime": "faketime",
    "openssl": "openssl",
    "quilt": "quilt",
    "stg": "stgit",
    "patch": "patch",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "docker-compose": "docker-compose",
    "systemd-analyze": "systemd",
    "man": "man-db",
    "zsh": "zsh",
    "fish": "fish",
}
# Debian's release with an engine that can keep blobs, and its packages; runc is the one that is installed.
NEWER_DEBIAN = "trixie"
NEWER_ENGINE = ("docker.io", "containerd")
UNPACKED = Path(__file__).resolve().parent.parent / "build" / "engine" / NEWER_DEBIAN
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
POLICY = Path("/usr/sbin/policy-rc.d")


class MissingError(Exception):
    """Something the tests want and that cannot be had here; the text says what and why."""


def main(command: Sequence[str]) -> int:
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with ExitStack() as running:
        state = Path(running.enter_context(state_directory()))
        environment, missing = start_services(state, running)
        for reason in missing:
            print(f"services: {reason}", file=sys.stderr)
        if missing and os.environ.get("CI") == "true":
            print("services: CI=true runs every test, so this is a failure", file=sys.stderr)
            return 1
        if missing:
            print("services: tests that need these are skipped", file=sys.stderr)
        write_env_file(state / "services.env", environment)
        code = run(command, os.environ | environment)
        return code if code >= 0 else 128 - code  # ended by a signal, said as a shell says it


def start_services(state: Path, running: ExitStack) -> tuple[dict[str, str], list[str]]:
    """Start what is missing; give the addresses of what runs, and a reason for each thing that does not."""
    environment: dict[str, str] = {}
    missing: list[str] = []
    engine = answering_engine()
    wanted = [name for name in PACKAGES if not (name == "dockerd" and engine)]
    try:
        install([PACKAGES[name] for name in wanted if not find_program(name)])
    except MissingError as reason:
        missing.append(str(reason))
    try:
        log = state / "docker-registry.log"
        environment[REGISTRY] = running.enter_context(registry(state / "registry", log))
        environment[REGISTRY_LOG] = str(log)
    except MissingError as reason:
        missing.append(str(reason))
    try:
        engine = engine or running.enter_context(docker_engine(state / "docker"))
        environment[DOCKER_CLIENT] = docker_client(engine, state)
        environment[DOCKER_HOST] = engine
    except MissingError as reason:
        missing.append(str(reason))
    try:
        environment[BLOB_ENGINE] = running.enter_context(blob_engine(state / "blobs"))
    except MissingError as reason:
        missing.append(str(reason))
    programs = [name for name in PACKAGES if name not in ("dockerd", "docker-registry")]
    missing += [f"no {name}" for name in programs if not find_program(name)]
    return environment, missing


@contextmanager
def state_directory() -> Iterator[str]:
    """A private directory, gone afterwards together with any mount a killed daemon left in it."""
    state = tempfile.mkdtemp(prefix="overlay-services-")
    try:
        yield state
    finally:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted((m for m in mounts if m.startswith(state + "/")), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(state)


def write_env_file(path: Path, environment: dict[str, str]) -> None:
    path.write_text("".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items()))


def run(command: Sequence[str], environment: dict[str, str]) -> int:
    """The command's exit status. It is given time to tidy up when this script is interrupted."""
    with subprocess.Popen(command, env=environment) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the terminal sent it to the command too
            return process.wait(STOP_TIMEOUT)
        finally:
            if process.poll() is None:
                process.terminate()


# --- programs ---------------------------------------------------------------------------------------------


def find_program(name: str) -> str | None:
    """Its path; daemons live in ``sbin``, which a user's PATH may lack."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin")


def install(packages: list[str]) -> None:
    """Install Debian packages without starting the services they bring.

    Raises:
        MissingError: not root on Debian, or apt failed.
    """
    if not packages:
        return
    listed = " ".join(packages)
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        raise MissingError(f"not installed: {listed} (installed by itself only as root on Debian)")
    apt = ["apt-get", "--quiet", "--yes", "-o", "DPkg::Lock::Timeout=300"]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    print(f"services: installing {listed}", file=sys.stderr)
    with services_not_started():
        for step in (["update"], ["install", "--no-install-recommends", *packages]):
            done = subprocess.run([*apt, *step], env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise MissingError(f"apt-get {' '.join(step)} failed: {done.stderr.strip()[-2000:]}")


@contextmanager
def services_not_started() -> Iterator[None]:
    """Debian asks ``policy-rc.d`` before it starts a service that was just installed; 101 means no."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


@contextmanager
def daemon(
    command: Sequence[str], log: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A background process that ends with the block, and also when this script is killed."""
    program = find_program(command[0])
    if program is None:
        raise MissingError(f"no {command[0]}")
    setpriv = ["setpriv", "--pdeathsig", "TERM"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*setpriv, program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,  # a Ctrl-C is for the command; it must still find its services
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_answers(process: subprocess.Popen[bytes], address: str, path: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not answers(address, path):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise MissingError(f"{log.stem} does not start here:\n{tail}")
        time.sleep(0.1)


def answers(address: str, path: str) -> bool:
    """Whether ``GET path`` at ``unix:///socket`` or ``tcp://host:port`` gives 200."""
    try:
        connection = connect(address)
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def connect(address: str) -> http.client.HTTPConnection:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "unix":
        connection = http.client.HTTPConnection("localhost", timeout=5)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.settimeout(5)
        connection.sock.connect(parts.path)
        return connection
    return http.client.HTTPConnection(parts.hostname or "localhost", parts.port or 2375, timeout=5)


# --- the registry -----------------------------------------------------------------------------------------


@contextmanager
def registry(state: Path, log: Path) -> Iterator[str]:
    """``docker-registry`` on a free loopback port, as ``host:port``."""
    state.mkdir()
    port = free_port()
    configuration = state / "config.yml"
    configuration.write_text(
        "version: 0.1\n"
        "log: {accesslog: {disabled: false}, level: warn}\n"
        f"storage: {{filesystem: {{rootdirectory: {state / 'data'}}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    environment = {"OTEL_TRACES_EXPORTER": "none"}
    with daemon(["docker-registry", "serve", str(configuration)], log, environment) as process:
        wait_until_it_answers(process, f"tcp://127.0.0.1:{port}", "/v2/", log)
        yield f"127.0.0.1:{port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- the Docker Engine ------------------------------------------------------------------------------------


def answering_engine() -> str | None:
    """The address of a Docker Engine that is there already."""
    if os.environ.get(PRIVATE_ENGINE) == "1":
        return None
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    if urllib.parse.urlsplit(address).scheme not in ("unix", "tcp"):
        return None
    return address if answers(address, "/_ping") else None


@contextmanager
def docker_engine(state: Path) -> Iterator[str]:
    """A ``dockerd`` with its own socket, storage and containerd, and no network of its own."""
    if os.geteuid() != 0:
        raise MissingError("no Docker Engine answers, and only root can start one")
    with dockerd("dockerd", state, {}, {}) as address:
        yield address


@contextmanager
def blob_engine(state: Path) -> Iterator[str]:
    """A newer ``dockerd`` whose image store is containerd's, beside the other one."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        raise MissingError("no Docker Engine that keeps blobs: it is unpacked only by root on Debian")
    if not UNPACKED.exists():
        unpack_newer_engine()
    programs = [str(UNPACKED / "usr" / name) for name in ("bin", "sbin")]
    environment = {"PATH": os.pathsep.join([*programs, os.environ["PATH"], "/usr/sbin"])}
    settings = {"features": {"containerd-snapshotter": True}}
    with dockerd(str(UNPACKED / "usr/sbin/dockerd"), state, environment, settings) as address:
        yield address


@contextmanager
def dockerd(
    program: str, state: Path, environment: dict[str, str], settings: dict[str, dict[str, bool]]
) -> Iterator[str]:
    state.mkdir()
    (state / "daemon.json").write_text(json.dumps(settings))
    address = f"unix://{state / 'docker.sock'}"
    command = [program, "--host", address, "--bridge=none", "--iptables=false", "--ip6tables=false"]
    for name in ("data-root", "exec-root"):
        command += [f"--{name}", str(state / name)]
    command += ["--pidfile", str(state / "dockerd.pid"), "--config-file", str(state / "daemon.json")]
    log = state / "dockerd.log"
    with daemon(command, log, environment) as process:
        wait_until_it_answers(process, address, "/_ping", log)
        yield address


def unpack_newer_engine() -> None:
    """Put the packages of a newer Debian below ``build/``; apt's own lists and records stay as they are.

    Raises:
        MissingError: apt failed.
    """
    print(f"services: unpacking {' and '.join(NEWER_ENGINE)} of {NEWER_DEBIAN}", file=sys.stderr)
    listed = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Identifier: Packages"]
    mirrors = output_of([*listed, "Origin: Debian", "Label: Debian"], Path.cwd()).split()
    if not mirrors:
        raise MissingError("apt knows no mirror of Debian: apt-get update?")
    UNPACKED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED.parent) as name:
        place = Path(name)
        for directory in ("lists/partial", "cache/archives/partial", "root"):
            (place / directory).mkdir(parents=True)
        (place / "status").touch()
        (place / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirrors[0]} {NEWER_DEBIAN} main\n")
        settings = {
            "Dir::State": place,
            "Dir::State::status": place / "status",
            "Dir::Cache": place / "cache",
            "Dir::Etc::sourcelist": place / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        apt = ["apt-get", "--quiet", *(f"-o{key}={value}" for key, value in settings.items())]
        output_of([*apt, "update"], place)
        output_of([*apt, "download", *NEWER_ENGINE], place)
        for package in place.glob("*.deb"):
            output_of(["dpkg-deb", "--extract", str(package), str(place / "root")], place)
        (place / "root").rename(UNPACKED)


def output_of(command: Sequence[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def docker_client(engine: str, state: Path) -> str:
    """The first ``docker`` that can build with BuildKit: one without its buildx plugin cannot."""
    context = state / "client-check"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    candidates = dict.fromkeys(path for path in (shutil.which("docker"), "/usr/bin/docker") if path)
    complaints = []
    for client in candidates:
        if not Path(client).exists():
            continue
        build = subprocess.run(
            [client, "--host", engine, "build", "--quiet", "--tag", "overlay-client-check", str(context)],
            env=os.environ | {"DOCKER_BUILDKIT": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if build.returncode == 0:
            remove = [client, "--host", engine, "image", "rm", "overlay-client-check"]
            subprocess.run(remove, capture_output=True, check=True)
            return client
        complaints.append(f"{client}: {build.stderr.strip()}")
    raise MissingError("no docker client that can build with BuildKit\n" + "\n".join(complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
