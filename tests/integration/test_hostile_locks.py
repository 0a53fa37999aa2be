"""A lock that lies, is damaged, cannot be written, or is written by two at once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import InvalidInput, Unavailable
from builder.project.lock import Lock, check_writable, read_lock, update_lock, write_lock
from tests.conftest import ROOT
from tests.projects.history import DEMO
from tests.projects.image import TREE, ImageProject

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageProject, str, str, bytes]:
    """A world that was built once: it, its base, its digest, its lock."""
    world = ImageProject.create(tmp_path_factory.mktemp("world"))
    base = world.base().reference
    digest = world.overlay(*world.build(base, "--json")).check().json["digest"]
    return world, base, digest, world.lock.read_bytes()


def file_says(**facts: Any) -> Change:
    return lambda known: known["files"][DEMO].update(facts)


ELSEWHERE = {"image_path": "usr/lib/python3.12/os.pyc", "blob": None, "mode": "0644", "uid": 0, "gid": 0}

# What is put into the facts of the base; none of it may reach the image.
LIES: dict[str, Change] = {
    "a file above the root": file_says(image_path="../../etc/passwd"),
    "a file by an absolute path": file_says(image_path="/etc/passwd"),
    "a file elsewhere in the image": file_says(image_path="etc/passwd"),
    "a file elsewhere in the package": file_says(image_path=f"{TREE}/sglang/other.py"),
    "another pre-image": file_says(blob="0" * 40),
    "no pre-image": file_says(blob=None),
    "a mode of another kind": file_says(mode="120644"),
    "a negative owner": file_says(uid=-1),
    "a package elsewhere": lambda known: known["roots"][0].update(image_path="etc"),
    "bytecode of another module": lambda known: known["bytecode"].update(
        {ELSEWHERE["image_path"]: ELSEWHERE}
    ),
    "bytecode above the root": lambda known: known["bytecode"].update({"../x.pyc": ELSEWHERE}),
    "no directory above the file": lambda known: known["directories"].clear(),
    "a directory's time before 1970": lambda known: known["directories"]["srv"].update(mtime=-1),
}


@pytest.mark.parametrize("what", LIES)
def test_what_a_lock_says_and_cannot_be_is_read_from_the_base_again(
    what: str, built: tuple[ImageProject, str, str, bytes]
) -> None:
    world, base, digest, sound = built
    value = json.loads(sound)
    (known,) = value["bases"].values()
    LIES[what](known)
    world.lock.write_text(json.dumps(value))
    assert world.overlay(*world.build(base, "--json")).check().json["digest"] == digest
    assert world.lock.read_bytes() == sound


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b"\xff",
        b'{"schema": 1, "x": NaN}',
        b'{"schema": 1, "x": "\\ud800"}',
        b'{"schema": 1, "x": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_lock_that_could_not_be_written_is_not_read(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "demo.lock").write_bytes(data)
    with pytest.raises(InvalidInput, match="lock is not JSON") as caught:
        read_lock([tmp_path / "demo.lock"])
    assert caught.value.where == str(tmp_path / "demo.lock")


def test_a_lock_that_cannot_be_written_is_said_before_anything_is_pushed(
    built: tuple[ImageProject, str, str, bytes],
) -> None:
    world, base, _, _ = built
    place = world.spec / "demo.lock"
    done = world.overlay(*world.build(base, "--lock", place, "--json", to="never")).check(8)
    error = done.json["error"]
    assert error["where"] == str(place)
    assert "--lock" in error["hint"]
    assert not (world.directory / "never").exists()


def test_something_else_in_a_locks_place_is_said(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "demo.lock")
    (tmp_path / "demo.lock").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "demo.lock", tmp_path / "file" / "demo.lock"):
        with pytest.raises(Unavailable, match="lock cannot be written"):
            check_writable(path)


def test_two_that_change_a_lock_at_once_are_both_kept(tmp_path: Path) -> None:
    path = tmp_path / "demo.lock"

    def add(platform: str) -> None:
        for number in range(20):
            images = {f"{platform}/{number}": {"digest": "x"}}
            update_lock([path], lambda now, more=images: replace(now, images={**now.images, **more}))

    threads = [threading.Thread(target=add, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_lock([path]).images) == 60
    assert [there.name for there in tmp_path.iterdir()] == ["demo.lock"]


def test_a_lock_that_was_shipped_is_carried_over_to_where_it_is_written(tmp_path: Path) -> None:
    shipped, written = tmp_path / "shipped" / "demo.lock", tmp_path / "state" / "demo.lock"
    write_lock(shipped, Lock(pins={"x": {"digest": "y"}}))
    update_lock([written, shipped], lambda now: replace(now, images={"linux/amd64": {}}))
    assert read_lock([written]) == Lock(pins={"x": {"digest": "y"}}, images={"linux/amd64": {}})
    assert read_lock([shipped]).images == {}


def test_a_full_disk_names_the_lock_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = (
        "import resource, sys, pathlib\n"
        "from builder.project.whole_file import write_whole\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_whole(pathlib.Path(sys.argv[1]), bytes(100_000))\n"
        "except OSError as error: print(error.filename)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "demo.lock")], capture_output=True, check=True, cwd=ROOT
    )
    assert done.stdout.decode().strip() == str(tmp_path / "demo.lock")
    assert list(tmp_path.iterdir()) == []
