"""A real Docker Engine: it bakes the same files, holds the same images, and tells what its containers run."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.conftest import Overlay, Run
from tests.integration.bases import Base
from tests.integration.conftest import Engine, needed_program, registry_address, with_sources
from tests.integration.judge import MANIFEST, OVERLAY, flattened, in_image
from tests.integration.layouts import Layer, Layout
from tests.integration.tampering import add_overlay, file, mail
from tests.integration.wheels import release_wheel
from tests.services import answers

PATCHED = in_image("python/sglang/srt/environ.py")
UNPATCHED = in_image("python/sglang/srt/server_args.py")
SLEEP = "/usr/bin/sleep-forever"


@dataclass(frozen=True)
class Bench:
    """A base in the registry, and the overlay baked on it by both engines; each in the Docker Engine too."""

    overlay: Overlay
    engine: Engine
    base: str
    wheel: Path
    embedded: str
    docker: str

    @property
    def keeps_blobs(self) -> bool:
        return "io.containerd.snapshotter" in str(self.engine.api.info()["DriverStatus"])

    def build(self, *options: object, name: str = OVERLAY) -> Any:
        return self.overlay("build", name, "--base", self.base, "--wheel", self.wheel, "--json", *options)


def program_layer(layout: Layout) -> Layer:
    """A program that waits, with the libraries it needs: the base by itself has nothing that runs."""
    program = shutil.which("sleep")
    assert program
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = {word for line in listed.splitlines() for word in line.split() if word.startswith("/")}

    def write(tar: tarfile.TarFile) -> None:
        for path, source in [(SLEEP, program), *((library, library) for library in sorted(libraries))]:
            file(path.lstrip("/"), Path(source).read_bytes(), mode=0o755)(tar)

    return layout.put_layer(write)


@pytest.fixture(scope="module", params=["docker_engine", "blob_engine"])
def bench(
    request: pytest.FixtureRequest,
    small_base: Base,
    wheel: Callable[[str], Path],
    skopeo: Callable[..., str],
    sources_cache: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Bench:
    """On the engine that is installed, and on one that keeps images as blobs."""
    docker_engine: Engine = request.getfixturevalue(request.param)
    layout, image = small_base.layout, small_base.layout.image(small_base.digest)
    config = {
        **image.config,
        "config": {**image.config["config"], "User": "1000:1000", "Entrypoint": [SLEEP], "Cmd": ["300"]},
    }
    digest = layout.put_image(config, [*image.layers, program_layer(layout)], "runs")
    space = f"{registry_address()}/e{uuid.uuid4().hex[:10]}"
    base = Base(layout, digest, "runs").push(skopeo, f"{space}/base")
    overlay = with_sources(
        Overlay.prepare(tmp_path_factory.mktemp("engine")), sources_cache
    ).with_environment(DOCKER_HOST=docker_engine.host)
    bench = Bench(overlay, docker_engine, base, wheel("0.5.20"), f"{space}/embedded:x", f"{space}/docker:x")
    bench.build("--push", bench.embedded).check()
    bench.build("--engine", "docker", "--push", bench.docker).check()
    docker_engine.cli("pull", "--quiet", bench.embedded)
    return bench


@contextmanager
def running(engine: Engine, image: str) -> Iterator[str]:
    name = f"overlay-test-{uuid.uuid4().hex[:8]}"
    engine.cli("run", "--detach", "--network", "none", "--name", name, image)
    try:
        yield name
    finally:
        engine.cli("rm", "--force", name)


def put_into(engine: Engine, container: str, path: str, data: bytes, *, mtime: int = 0) -> None:
    """Write a file into a container, as somebody who edits in place does."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        parents = [str(parent) for parent in Path(path.strip("/")).parents if str(parent) != "."]
        for parent in reversed(parents[:1] if parents[0].endswith("__pycache__") else []):
            info = tarfile.TarInfo(parent)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        file(path.strip("/"), data, mtime=mtime)(tar)
    engine.api.containers.get(container).put_archive("/", archive.getvalue())


def read_from(engine: Engine, container: str, path: str) -> bytes:
    chunks, _ = engine.api.containers.get(container).get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        content = tar.extractfile(tar.getmembers()[0])
        assert content
        return content.read()


def exported(engine: Engine, image: str, path: Path) -> dict[str, tuple[object, ...]]:
    name = engine.cli("create", image).strip()
    try:
        engine.cli("export", "--output", str(path), name)
    finally:
        engine.cli("rm", name)
    return flattened(path)


def test_both_engines_make_the_same_files(bench: Bench, tmp_path: Path) -> None:
    """Type, mode, owner, link target and bytes of every path, files and directories of the base included."""
    ours = exported(bench.engine, bench.embedded, tmp_path / "embedded.tar")
    theirs = exported(bench.engine, bench.docker, tmp_path / "docker.tar")
    assert {
        path: (ours.get(path), theirs.get(path))
        for path in ours.keys() | theirs.keys()
        if ours.get(path) != theirs.get(path)
    } == {}
    assert ours[PATCHED][-1]
    assert MANIFEST in theirs


def test_both_engines_make_the_same_config(bench: Bench) -> None:
    ours, theirs = (bench.engine.api.images.get(name).attrs for name in (bench.embedded, bench.docker))
    for key in (
        "Labels",
        "Env",
        "Entrypoint",
        "Cmd",
        "WorkingDir",
        "User",
        "ExposedPorts",
        "Volumes",
        "StopSignal",
    ):
        assert ours["Config"].get(key) == theirs["Config"].get(key), key
    assert ours["Config"]["User"] == "1000:1000"
    assert (ours["Os"], ours["Architecture"]) == (theirs["Os"], theirs["Architecture"])


def test_directories_of_the_base_keep_their_modes(bench: Bench, tmp_path: Path) -> None:
    before = exported(bench.engine, bench.base, tmp_path / "before.tar")
    after = exported(bench.engine, bench.docker, tmp_path / "after.tar")
    directories = {path for path, facts in before.items() if facts[0] == tarfile.DIRTYPE}
    assert {path for path in directories if before[path] != after[path]} == set()


@pytest.mark.parametrize("which", ["embedded", "docker"])
def test_what_each_engine_baked_passes_verify(bench: Bench, which: str) -> None:
    image = getattr(bench, which)
    for name in (image, f"engine:{image}"):
        result = bench.overlay("verify", name, "--json").check().json
        assert result["deviations"] == []


def test_the_same_overlay_of_both_engines_compares_as_the_same(bench: Bench) -> None:
    bench.overlay("verify", bench.embedded, f"engine:{bench.docker}").check()


def test_a_running_container_passes_and_its_entry_point_is_never_run_again(bench: Bench) -> None:
    with running(bench.engine, bench.docker) as name:
        # Other tests have containers of other images at the same time.
        listing = ("ps", "--all", "--quiet", "--filter", f"ancestor={bench.docker}")
        before = bench.engine.cli(*listing)
        assert before
        bench.overlay("verify", name).check()
        assert bench.engine.cli(*listing) == before


def test_a_file_edited_in_a_running_container(bench: Bench) -> None:
    with running(bench.engine, bench.embedded) as name:
        data = read_from(bench.engine, name, f"/{PATCHED}")
        put_into(bench.engine, name, PATCHED, data.replace(b"import", b"Import", 1))
        run = bench.overlay("verify", name, "--json").check(5)
    (deviation,) = run.json["error"]["deviations"]
    assert (deviation["kind"], deviation["where"]) == ("file", f"/{PATCHED}")
    assert deviation["expected"] != deviation["found"]
    assert "changed in the container" in deviation["what"]


def test_a_file_mounted_over_a_patched_one(bench: Bench, tmp_path: Path) -> None:
    mine = tmp_path / "environ.py"
    mine.write_bytes(b"x = 1\n")
    name = f"overlay-test-{uuid.uuid4().hex[:8]}"
    mount = f"type=bind,source={mine},target=/{PATCHED}"
    bench.engine.cli("run", "--detach", "--network", "none", "--mount", mount, "--name", name, bench.embedded)
    try:
        (deviation,) = bench.overlay("verify", name, "--json").check(5).json["error"]["deviations"]
    finally:
        bench.engine.cli("rm", "--force", name)
    assert (deviation["kind"], deviation["where"]) == ("file", f"/{PATCHED}")
    assert f"mounted at /{PATCHED}" in deviation["what"]


def test_a_commit_over_a_container_that_was_edited(bench: Bench) -> None:
    committed = f"overlay-test:{uuid.uuid4().hex[:8]}"
    with running(bench.engine, bench.embedded) as name:
        put_into(bench.engine, name, PATCHED, b"x = 1\n")
        bench.engine.cli("commit", name, committed)
    try:
        (deviation,) = (
            bench.overlay("verify", f"engine:{committed}", "--json").check(5).json["error"]["deviations"]
        )
    finally:
        bench.engine.cli("image", "rm", committed)
    assert (deviation["kind"], deviation["where"]) == ("file", f"/{PATCHED}")


def cache_of(path: str) -> str:
    directory, _, name = path.rpartition("/")
    return f"{directory}/__pycache__/{name.removesuffix('.py')}.cpython-311.pyc"


def trusted_bytecode(engine: Engine, container: str) -> bytes:
    import importlib.util
    import struct

    chunks, _ = engine.api.containers.get(container).get_archive(f"/{PATCHED}")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        (info,) = tar.getmembers()
    return importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(info.mtime), info.size) + b"old code"


def test_bytecode_that_came_with_a_commit(bench: Bench) -> None:
    """It is of this time and size, and not what compiling the source gives: in a container or an image."""
    committed = f"overlay-test:{uuid.uuid4().hex[:8]}"
    with running(bench.engine, bench.embedded) as name:
        put_into(bench.engine, name, cache_of(PATCHED), trusted_bytecode(bench.engine, name))
        (first,) = deviations(bench.overlay("verify", name, "--json"))
        bench.engine.cli("commit", name, committed)
    try:
        (deviation,) = deviations(bench.overlay("verify", f"engine:{committed}", "--json"))
        with running(bench.engine, committed) as name:
            (again,) = deviations(bench.overlay("verify", name, "--json"))
    finally:
        bench.engine.cli("image", "rm", committed)
    assert (deviation["kind"], deviation["where"]) == ("bytecode", f"/{cache_of(PATCHED)}")
    assert first["where"] == again["where"] == deviation["where"]


def deviations(run: Run) -> list[dict[str, str]]:
    return list(run.check(5).json["error"]["deviations"])


def compiled(engine: Engine, container: str, path: str) -> tuple[str, bytes]:
    """The bytecode that this machine's Python writes for a container's source, in a process of its own."""
    chunks, _ = engine.api.containers.get(container).get_archive(f"/{path}")
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            tar.extractall(directory, filter="data")
        source = Path(directory) / Path(path).name
        program = "import py_compile, sys; print(py_compile.compile(sys.argv[1], dfile=sys.argv[2]))"
        done = subprocess.run(
            [sys.executable, "-c", program, source, f"/{path}"], capture_output=True, text=True, check=True
        )
        written = Path(done.stdout.strip())
        return f"{path.rpartition('/')[0]}/__pycache__/{written.name}", written.read_bytes()


def test_bytecode_that_a_serving_container_writes_is_no_deviation(bench: Bench) -> None:
    with running(bench.engine, bench.embedded) as name:
        for path in (PATCHED, UNPATCHED):
            put_into(bench.engine, name, *compiled(bench.engine, name, path))
        result = bench.overlay("verify", name, "--json").check().json
        assert result["notes"] == []
        where, data = compiled(bench.engine, name, UNPATCHED)
        put_into(bench.engine, name, where, data[:-4] + b"evil")
        (deviation,) = deviations(bench.overlay("verify", name, "--json"))
    assert (deviation["kind"], deviation["where"]) == ("bytecode", f"/{where}")


@contextmanager
def made(bench: Bench, *options: str, command: tuple[str, ...] = ()) -> Iterator[str]:
    """A container of the image, started in another way; it need not run to be looked at."""
    name = f"overlay-test-{uuid.uuid4().hex[:8]}"
    bench.engine.cli("create", "--network", "none", "--name", name, *options, bench.embedded, *command)
    try:
        yield name
    finally:
        bench.engine.cli("rm", "--force", name)


def found_in(bench: Bench, *options: str, command: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    with made(bench, *options, command=command) as name:
        listed = deviations(bench.overlay("verify", name, "--json"))
    return [(one["kind"], one["where"]) for one in listed]


def test_a_file_mounted_or_copied_anywhere_below_the_package(bench: Bench, tmp_path: Path) -> None:
    mine = tmp_path / "server_args.py"
    mine.write_bytes(b"x = 1\n")
    expected = [("package", f"/{UNPATCHED}")]
    assert found_in(bench, "--mount", f"type=bind,source={mine},target=/{UNPATCHED}") == expected
    with made(bench) as name:
        bench.engine.cli("cp", str(mine), f"{name}:/{UNPATCHED}")
        (deviation,) = deviations(bench.overlay("verify", name, "--json"))
        assert (deviation["kind"], deviation["where"]) == expected[0]
        assert "changed in the container" in deviation["what"]
        bench.overlay("verify", name, "--allow-over", f"/{UNPATCHED}").check()


def test_a_directory_mounted_over_the_package(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_bytes(b"")
    package = in_image("python/sglang")
    found = found_in(bench, "--volume", f"{tmp_path}:/{package}")
    assert ("file", f"/{PATCHED}") in found
    assert ("package", f"/{package}/version.py") in found


@pytest.mark.parametrize("loader", ["sglang/__init__.py", "sglang.py", "sglang.abi3.so"])
def test_another_package_mounted_earlier_on_the_path(bench: Bench, tmp_path: Path, loader: str) -> None:
    """In the first directory that Python looks into, and in one that PYTHONPATH names."""
    (tmp_path / loader).parent.mkdir(exist_ok=True)
    (tmp_path / loader).write_bytes(b"")
    shadow = ("shadow", f"/{in_image('python/sglang')}")
    first = loader.partition("/")[0]
    earlier = f"{searched(bench)[0]}/{first}"
    assert set(found_in(bench, "--volume", f"{tmp_path / first}:{earlier}")) == {shadow}
    options = ("--volume", f"{tmp_path}:/else/where", "--env", "PYTHONPATH=/else/where")
    assert set(found_in(bench, *options)) == {shadow, ("config", "PYTHONPATH")}


def test_a_package_or_a_pth_file_written_into_a_container(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_bytes(b"")
    (tmp_path / "a.pth").write_bytes(b"import evil\n")
    with made(bench) as name:
        bench.engine.cli(
            "cp", str(tmp_path / "sglang"), f"{name}:{existing(bench, name, searched(bench))}/sglang"
        )
        (deviation,) = {one["kind"] for one in deviations(bench.overlay("verify", name, "--json"))}
        assert deviation == "shadow"
    sites = [path for path in searched(bench) if path.endswith("-packages")]
    with made(bench) as name:
        bench.engine.cli("cp", str(tmp_path / "a.pth"), f"{name}:{existing(bench, name, sites)}/a.pth")
        notes = bench.overlay("verify", name, "--json").check().json["notes"]
    assert any("a.pth: an import line runs" in note for note in notes), notes


def searched(bench: Bench) -> list[str]:
    """Where the image's Python looks for packages, the first ones first."""
    manifest = bench.overlay("inspect", bench.embedded, "--full", "--json").check().json["contents"]
    return list(manifest["entrypoint"]["searched"])


def existing(bench: Bench, container: str, places: list[str]) -> str:
    """The first of some directories that a container has."""
    for place in places:
        try:
            bench.engine.api.containers.get(container).get_archive(place)
        except docker.errors.NotFound:
            continue
        return place
    raise AssertionError(places)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--env", "PYTHONPATH=/none"), "PYTHONPATH"),
        (("--env", "SGLANG_X=5e6c12e7"), "SGLANG_X"),
        (("--env", "TRITON_CACHE_DIR=/else"), "TRITON_CACHE_DIR"),
        (("--user", "0"), "User"),
        (("--workdir", "/tmp"), "WorkingDir"),
        (("--entrypoint", "/bin/other"), "Entrypoint"),
        (("--health-cmd", "true"), "Healthcheck"),
        (("--stop-signal", "SIGKILL"), "StopSignal"),
    ],
)
def test_what_a_container_is_started_with(bench: Bench, options: tuple[str, ...], where: str) -> None:
    with made(bench, *options, command=("300",)) as name:
        run = bench.overlay("verify", name, "--json")
        assert [(one["kind"], one["where"]) for one in deviations(run)] == [("config", where)]
        assert "5e6c12e7" not in run.out + run.err
        bench.overlay("verify", name, "--allow-config", where).check()


def test_what_launch_sets_for_a_rank_is_listed_and_two_ranks_are_compared(bench: Bench) -> None:
    from builder.launch.docker import container_options
    from builder.launch.nodes import read_nodes
    from builder.launch.server import Arguments, Server

    server = Server("demo", bench.embedded, "sha256:" + "0" * 64, Arguments({}))
    first, second = server.ranks(read_nodes(["10.0.0.1", "10.0.0.2"]))
    kept = ("--env", "--health-cmd", "--health-interval", "--health-start-period")
    groups = [[group for group in container_options(rank) if group[0] in kept] for rank in (first, second)]
    words = [[word for group in of_rank for word in group] for of_rank in groups]
    ours = made(bench, *words[0], command=first.command)
    theirs = made(bench, *words[1], command=second.command)
    other = made(bench, *words[1], "--env", "SGLANG_X=0", command=second.command)
    with ours as one, theirs as two, other as three:
        listed = bench.overlay("verify", one, "--json").check().json["declared"]
        bench.overlay("verify", one, two).check()
        bench.overlay("verify", one, bench.embedded).check()
        found = deviations(bench.overlay("verify", two, three, "--json"))
        allowed = bench.overlay("verify", two, three, "--allow-config", "SGLANG_X").check()
    assert "SGLANG_HOST_IP=10.0.0.1 (as launch sets it for a rank)" in listed
    assert any(line.startswith("Cmd python3 -m sglang.launch_server ") for line in listed)
    assert {one["where"] for one in found} == {"SGLANG_X"}
    assert "the same" in allowed.out


def test_a_commit_over_a_file_that_no_patch_touches(bench: Bench) -> None:
    committed = f"overlay-test:{uuid.uuid4().hex[:8]}"
    with running(bench.engine, bench.embedded) as name:
        put_into(bench.engine, name, UNPATCHED, b"x = 1\n")
        bench.engine.cli("commit", name, committed)
    try:
        (deviation,) = deviations(bench.overlay("verify", f"engine:{committed}", "--json"))
    finally:
        bench.engine.cli("image", "rm", committed)
    assert (deviation["kind"], deviation["where"]) == ("package", f"/{UNPATCHED}")


def test_inspect_asks_a_running_container_or_an_image_of_the_engine(bench: Bench) -> None:
    with running(bench.engine, bench.docker) as name:
        container = bench.overlay("inspect", name, "--full", "--json").check().json
    image = bench.overlay("inspect", f"engine:{bench.docker}", "--full", "--json").check().json
    assert container == image
    assert image["name"] == OVERLAY
    assert [patch["name"] for patch in image["contents"]["patches"]] == image["patches"]


def test_a_container_there_is_not(bench: Bench) -> None:
    assert "no container of this name" in bench.overlay("verify", "no-such-container").check(5).err
    assert "no image of this name" in bench.overlay("verify", "engine:no-such:image").check(5).err


def test_no_engine_that_answers(bench: Bench, tmp_path: Path) -> None:
    lost = bench.overlay.with_environment(DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    run = lost("verify", "some-container").check(8)
    assert "no Docker Engine answers" in run.err
    assert "none.sock" in run.err


def test_load_brings_the_image_of_the_embedded_engine(bench: Bench) -> None:
    loaded = bench.build("--load", "--tag-template", f"load-{uuid.uuid4().hex[:8]}").check().json["loaded"]
    try:
        ours, pulled = (bench.engine.api.images.get(name) for name in (loaded, bench.embedded))
        assert ours.id == pulled.id
        bench.overlay("verify", f"engine:{loaded}").check()
    finally:
        bench.engine.cli("image", "rm", loaded)


def test_what_was_loaded_is_pushed_as_what_the_registry_has(bench: Bench) -> None:
    """An engine that keeps blobs keeps the manifest: its id is the printed digest, and a push says it."""
    built = bench.build("--load", "--tag-template", f"load-{uuid.uuid4().hex[:8]}").check().json
    target = f"{bench.embedded}-loaded"
    bench.engine.cli("tag", built["loaded"], target)
    try:
        said = bench.engine.cli("push", target)
        bench.overlay("verify", target).check()
    finally:
        bench.engine.cli("image", "rm", target, built["loaded"])
    pushed = re.search("digest: (sha256:[0-9a-f]{64})", said)
    assert pushed
    if bench.keeps_blobs:
        assert built["loaded_id"] == built["digest"] == pushed[1]
    else:
        assert built["loaded_id"] == bench.engine.api.images.get(bench.embedded).id != built["digest"]


def test_what_an_engine_pushed_is_what_is_locked_and_attested(
    bench: Bench, skopeo: Callable[..., str]
) -> None:
    target = f"{bench.docker}-pushed"
    built = bench.build("--engine", "docker", "--push", target).check().json
    there = "sha256:" + hashlib.sha256(skopeo("inspect", "--raw", f"docker://{target}").encode()).hexdigest()
    assert built["digest"] == there
    assert built["references"] == [f"{target}@{there}"]
    listed = bench.overlay("attest", target, "--list", "--json").check()
    assert "https://slsa.dev/provenance/v1" in listed.out


@pytest.fixture
def podman() -> Iterator[str]:
    """podman's side of the Docker API, with storage of its own (its paths must be short); its address."""
    program = needed_program("podman")
    with tempfile.TemporaryDirectory(prefix="podman-") as place:
        address = f"unix://{place}/socket"
        storage = ["--root", f"{place}/root", "--runroot", f"{place}/run", "--storage-driver", "vfs"]
        with subprocess.Popen([program, *storage, "system", "service", "--time", "0", address]) as process:
            try:
                deadline = time.monotonic() + 60
                while not answers(address, "/_ping"):
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                yield address
            finally:
                process.terminate()


def test_podman_takes_an_image_twice(prepared: Overlay, small_base: Base, podman: str) -> None:
    """It loads no archive without layers, unlike Docker's engine: each time all of them are sent."""
    overlay = prepared.with_environment(DOCKER_HOST=podman)
    options = ("--base", small_base.reference, "--wheel", release_wheel("0.5.20"), "--load", "--json")
    for tag in ("first", "second"):
        built = overlay("build", OVERLAY, *options, "--tag-template", tag).check().json
        assert built["loaded"].endswith(f":{tag}")
        assert built["loaded_id"] != built["digest"]
    overlay("verify", f"engine:{built['loaded']}", "--base", small_base.reference).check()


def test_load_brings_all_layers_of_a_base_that_the_engine_never_saw(bench: Bench, small_base: Base) -> None:
    layout, image = small_base.layout, small_base.layout.image(small_base.digest)
    new = layout.put_layer(file("etc/unseen", uuid.uuid4().bytes))
    base = Base(layout, layout.put_image(image.config, [new, *image.layers], "unseen"), "unseen")
    name = f"load-{uuid.uuid4().hex[:8]}"
    options = ("--base", base.reference, "--wheel", bench.wheel, "--load", "--tag-template", name)
    loaded = bench.overlay("build", OVERLAY, *options, "--json").check().json["loaded"]
    try:
        bench.overlay("verify", f"engine:{loaded}", "--base", base.reference).check()
    finally:
        bench.engine.cli("image", "rm", loaded)


def test_a_template_with_run_needs_the_docker_engine_and_names_its_line(bench: Bench) -> None:
    template = bench.overlay.directory / "Dockerfile.in"
    text = template.read_text()
    template.write_text(text + 'RUN ["/no/such/program"]\n')
    try:
        embedded = bench.build("--push", f"{bench.embedded}-run").check(1)
        docker = bench.build("--engine", "docker", "--push", f"{bench.docker}-run").check(8)
    finally:
        template.write_text(text)
    assert "--engine docker" in embedded.err
    where = embedded.json["error"]["where"]
    assert where.startswith("Dockerfile, line ")
    assert docker.json["error"]["where"] == where
    assert "/no/such/program" in docker.err


def test_run_works_with_the_docker_engine(bench: Bench) -> None:
    template = bench.overlay.directory / "Dockerfile.in"
    text = template.read_text()
    template.write_text(text + f'RUN ["{SLEEP}", "0"]\n')
    try:
        options = ("--engine", "docker", "--network", "none", "--push", f"{bench.docker}-run")
        run = bench.build(*options).check()
    finally:
        template.write_text(text)
    assert run.json["references"]
    bench.overlay("verify", f"{bench.docker}-run").check()


def test_a_base_in_a_layout_is_refused_by_the_docker_engine(bench: Bench, small_base: Base) -> None:
    options = ("--base", small_base.reference, "--wheel", bench.wheel, "--engine", "docker")
    run = bench.overlay("build", OVERLAY, *options).check(2)
    assert "from a registry, not from a layout" in run.err
    assert "--engine oci --load" in run.err


def test_a_series_that_removes_files_is_refused_by_the_docker_engine(
    bench: Bench, upstream_repository: Path, run_git: Callable[..., bytes]
) -> None:
    run_git("rm", "--quiet", "python/sglang/check_env.py", cwd=upstream_repository)
    diff = run_git("diff", "--cached", "--full-index", "--no-color", cwd=upstream_repository)
    run_git("reset", "--quiet", "--hard", cwd=upstream_repository)
    add_overlay(bench.overlay, "remover", {"remove-file": mail("Remove a file", diff)})
    refused = bench.build("--engine", "docker", name="remover").check(2)
    assert "COPY cannot" in refused.err
    assert "check_env.py" in refused.err


def test_a_base_in_the_engine_that_is_not_the_bases_is_refused(bench: Bench) -> None:
    """Pre-images are read out of the engine's own copy; here that is another image, the patched one."""
    from builder.base.image import BaseFiles
    from builder.errors import ImageMismatch
    from builder.oci.reference import parse_reference
    from builder.publish.docker_engine.bake import check_engine_base
    from builder.publish.docker_engine.connection import Engine as Connection

    lock = json.loads((bench.overlay.directory / "overlays" / f"{OVERLAY}.lock").read_text())
    facts = BaseFiles.from_json(lock["bases"][bench.base.partition("@")[2]])
    assert facts is not None
    connection = Connection(bench.engine.api, bench.engine.host)
    check_engine_base(connection, facts, parse_reference(bench.base))
    with pytest.raises(ImageMismatch) as refused:
        check_engine_base(connection, facts, parse_reference(bench.embedded))
    named = f"{refused.value.where}\n{refused.value.details}"
    assert all(path in named for path in facts.files)


def test_what_an_engine_cannot_deliver_is_refused_before_it_bakes(bench: Bench, tmp_path: Path) -> None:
    layout = bench.build("--engine", "docker", "--output", f"oci:{tmp_path / 'out'}").check(2)
    assert "writes no layouts" in layout.err
    unpushed = bench.build("--engine", "docker", "--attest", tmp_path / "attest").check(2)
    assert "--push REF" in unpushed.err
    lost = bench.overlay.with_environment(DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    options = ("--base", bench.base, "--wheel", bench.wheel, "--engine", "docker")
    lost("build", OVERLAY, *options, "--output", f"oci:{tmp_path / 'out'}").check(2)  # no engine was asked


def test_check_is_refused_with_the_docker_engine(bench: Bench) -> None:
    assert "no two builds are the same" in bench.build("--engine", "docker", "--check").check(2).err


def test_docker_reads_the_manifest_of_what_was_pushed(bench: Bench) -> None:
    """With Docker's own media types: the client of Engine 20.10 knows no others here."""
    space = bench.embedded.rpartition("/")[0]
    wheel = ("sglang==0.5.20", "--wheel", bench.wheel, "--platform", "linux/amd64", "--family", "docker")
    base = bench.overlay("base", "wheel", *wheel, "--output", f"{space}/docker-base:x", "--json").check().json
    options = ("--base", base["reference"], "--wheel", bench.wheel, "--push", f"{space}/docker-family:x")
    built = bench.overlay("build", OVERLAY, *options, "--json").check().json
    read = json.loads(bench.engine.cli("manifest", "inspect", "--insecure", f"{space}/docker-family:x"))
    assert read["layers"][-1]["digest"] == built["images"][0]["layer"]["digest"]
    assert read["mediaType"] == "application/vnd.docker.distribution.manifest.v2+json"
    bench.overlay("verify", f"{space}/docker-family:x").check()


def test_reading_an_image_or_baking_one_starts_nothing(bench: Bench) -> None:
    """No entry point can print a banner into what is read, or do worse."""
    start = bench.engine.api.api.info()["SystemTime"]
    bench.overlay("verify", f"engine:{bench.embedded}").check()
    bench.build("--engine", "docker").check()
    end = bench.engine.api.api.info()["SystemTime"]
    shown = "{{.Action}} {{.Actor.ID}} {{.Actor.Attributes.image}}"
    options = ("--since", start, "--until", end, "--filter", "type=container", "--format", shown)
    events = [line.split() for line in bench.engine.cli("events", *options).splitlines()]
    # Others use the engine too; containers for reading are made of an image's id, or of the base by digest.
    own = {
        event[1]
        for event in events
        if event[0] == "create" and (event[2].startswith("sha256:") or event[2] == bench.base)
    }
    assert len(own) >= 3
    assert {event[0] for event in events if event[1] in own} <= {"create", "destroy", "archive-path"}


def test_the_classic_builder_makes_the_same_files_where_no_client_can_use_buildkit(
    bench: Bench, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "sh", "unshare", "prlimit"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    assert not (programs / "docker").exists()
    alone = bench.overlay.with_environment(PATH=str(programs))
    tag = f"classic-{uuid.uuid4().hex[:8]}"
    options = ("--base", bench.base, "--wheel", bench.wheel, "--engine", "docker", "--tag-template", tag)
    loaded = alone("build", OVERLAY, *options, "--json").check().json["loaded"]
    try:
        ours = exported(bench.engine, bench.embedded, tmp_path / "embedded.tar")
        theirs = exported(bench.engine, loaded, tmp_path / "classic.tar")
    finally:
        bench.engine.cli("image", "rm", loaded)
    assert theirs == ours
