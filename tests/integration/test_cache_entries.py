"""Every kind of entry of the cache: whatever is in its place, a command says the same and makes it again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from builder.project.cache import STORES, Store
from tests.projects.image import NAME, ImageProject

Damage = Callable[[Path], None]


class Filled(NamedTuple):
    """A world whose commands have run.

    Args:
        world: its cache is to be put in order before it is used (:meth:`renewed`).
        words: the commands, by the kind of entry that they read.
        said: what each printed.
    """

    world: ImageProject
    words: dict[str, tuple[object, ...]]
    said: dict[str, str]

    def renewed(self, kind: str) -> ImageProject:
        """The world with a sound cache; of what is looked at before this kind's entries, nothing is there."""
        shutil.rmtree(self.world.cache)
        shutil.copytree(self.world.directory / "sound", self.world.cache)
        if kind != "built":
            shutil.rmtree(self.world.cache / "built")
            self.world.lock.unlink(missing_ok=True)
        return self.world


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    world = ImageProject.create_cold(tmp_path_factory.mktemp("world"))
    build = world.build(world.base().reference)
    diff = ("diff", NAME, "--upstream", world.commit, "--json")
    world.overlay("patch", "export", "one").check()
    shutil.rmtree(world.cache)
    words: dict[str, tuple[object, ...]] = dict.fromkeys((*STORES, "layers"), build)
    words |= {"evidence": diff, "lint": ("patch", "lint", "one")}
    world.overlay(*build).check()
    made = {command: said(world, command) for command in set(words.values())}
    shutil.copytree(world.cache, world.directory / "sound")
    return Filled(world, words, {kind: made[command] for kind, command in words.items()})


def said(world: ImageProject, command: tuple[object, ...]) -> str:
    """What matters of what a command prints: the digest of a build, all of everything else."""
    out = world.overlay(*command).check().out
    return next((line for line in out.splitlines() if line.startswith("digest ")), out)


def entries(world: ImageProject, kind: str) -> list[Path]:
    found = sorted(path for path in (world.cache / kind).iterdir() if path.is_file())
    assert found, f"no {kind}"
    return found


def put_directory(path: Path) -> None:
    path.unlink()
    (path / "more").mkdir(parents=True)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def put_foreign(path: Path) -> None:
    """What was kept, and is whole, under another key; an index of a layer under another blob."""
    if path.suffix == ".layer":
        others = [other for other in path.parent.iterdir() if other.name > path.name] or [path]
        data = others[0].read_bytes()
        path.write_bytes(data)
        return
    foreign = Store(path.parent)
    foreign.put("another", b"{}")
    (path.parent / "another").replace(path)


DAMAGES: dict[str, Damage] = {
    "a directory": put_directory,
    "an empty file": lambda path: path.write_bytes(b"") and None,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]) and None,
    "a byte flipped": lambda path: flip(path, path.stat().st_size // 2),
    "another key's": put_foreign,
}


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("kind", [*STORES, "layers"])
def test_the_command_says_the_same_and_makes_the_entry_again(kind: str, what: str, filled: Filled) -> None:
    world = filled.renewed(kind)
    sound = {path: content(path) for path in entries(world, kind)}
    for path in sound:
        DAMAGES[what](path)
    assert said(world, filled.words[kind]) == filled.said[kind]
    assert {path: content(path) for path in entries(world, kind)} == sound


def content(path: Path) -> object:
    """An entry's content; probes are asked at the same time, and their answers are kept in either order."""
    if path.suffix == ".layer":
        return path.read_bytes()
    known = Store(path.parent).get(path.name)
    assert known is not None
    return sorted(known)


@pytest.mark.parametrize("forged", [b"", b"{}", b"0" * 40 + b" " + b"0" * 40])
def test_what_somebody_made_a_checksum_for_changes_no_digest(forged: bytes, filled: Filled) -> None:
    """git says of a series only whether it agrees; where the cache says anything else, git is asked."""
    world = filled.renewed("series.git/opinions")
    sound = {path: content(path) for path in entries(world, "series.git/opinions")}
    for path in sound:
        Store(path.parent).put(path.name, forged)
    assert said(world, filled.words["built"]) == filled.said["built"]
    assert {path: content(path) for path in entries(world, "series.git/opinions")} == sound
