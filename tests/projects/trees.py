"""Small source trees, edits of them, and git as the judge of the diffs and patches that we make."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from builder.source.files import SourceFile

Tree = Mapping[str, SourceFile]

# Every one of git's settings that could change a diff stands at its default here: nobody's files are read.
PLAIN = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A. Writer",
    "GIT_AUTHOR_EMAIL": "writer@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "A. Writer",
    "GIT_COMMITTER_EMAIL": "writer@example.org",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}


def plain_git(
    *arguments: str | Path, cwd: Path, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> bytes:
    """git as a stranger has it on a fresh machine."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env=others | PLAIN | dict(env or {}), input=stdin, capture_output=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode(errors='replace')}"
    return done.stdout


class Judge:
    """A bare repository in which git writes trees and diffs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        plain_git("init", "--quiet", "--bare", str(path), cwd=path.parent)

    def git(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        return plain_git(*arguments, cwd=self.path, stdin=stdin, env=env)

    def tree(self, files: Tree) -> str:
        """The tree id that git gives to these files."""
        index = {"GIT_INDEX_FILE": str(self.path / "judge-index")}
        (self.path / "judge-index").unlink(missing_ok=True)
        rows = b""
        for path, file in files.items():
            blob = self.git("hash-object", "-w", "--no-filters", "--stdin", stdin=file.data).strip()
            rows += file.mode.encode() + b" " + blob + b"\t" + os.fsencode(path) + b"\0"
        self.git("update-index", "-z", "--index-info", stdin=rows, env=index)
        return self.git("write-tree", env=index).decode().strip()

    def diff(self, old: str, new: str, *options: str) -> bytes:
        """The diff from one tree to another, as ``git format-patch --full-index`` has it."""
        return self.git("diff-tree", "-r", "-p", "-M", "--full-index", *options, old, new)

    def commit(self, tree: str, message: bytes, *parents: str, env: Mapping[str, str] | None = None) -> str:
        words = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", tree, *words, stdin=message, env=env).decode().strip()


@functools.cache
def shared_judge() -> Judge:
    """One judge for a whole test run: a repository for every example would cost more than the tests."""
    directory = Path(tempfile.mkdtemp(prefix="overlay-judge-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Judge(directory / "judge.git")


def plain(text: str | bytes, mode: str = "100644") -> SourceFile:
    return SourceFile(mode, text.encode() if isinstance(text, str) else text)


# --- generated ones -----------------------------------------------------------------------------------------

_LINES = st.sampled_from(
    [
        b"def f():", b"    return 1", b"    a = 1", b"", b"", b"    b = 2", b"    return a + b", b"\t", b" ",
        b"# \xe4\xff",
        b"-- ", b"--- a/x", b"+++ b/x", b"@@ -1 +1 @@", b"diff --git a/x b/x", b"\\ No newline",
        b"x\r", b"\xc2\x85\x0b\x0c", "µ".encode(),
    ]
)  # fmt: skip
_NAMES = st.sampled_from(["a.py", "b.py", "d/c.py", "d/e e.py", "d/ü.py", "x/y/z.txt", 'q"uote.py', "run.sh"])


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """A file: LF or CRLF, with or without its last newline, maybe empty, any bytes but NUL."""
    lines = draw(st.lists(_LINES, max_size=30))
    ending = draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n"]))
    return ending.join(lines) + (ending if lines and draw(st.booleans()) else b"")


@st.composite
def edited(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` after somebody worked on it."""
    lines = data.split(b"\n")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines)))
        cut = draw(st.integers(0, 3))
        lines[at : at + cut] = draw(st.lists(_LINES, max_size=4))
    return b"\n".join(lines)


@st.composite
def source_trees(draw: st.DrawFn) -> dict[str, SourceFile]:
    names = draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True))
    return {name: SourceFile(draw(st.sampled_from(["100644", "100755"])), draw(contents())) for name in names}


@st.composite
def edited_trees(draw: st.DrawFn, tree: Tree) -> dict[str, SourceFile]:
    """``tree`` after files were changed, made, deleted, renamed, or given another mode."""
    after = dict(tree)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(tree)))
        file = after.get(name)
        deed = draw(st.sampled_from(["edit", "edit", "edit", "create", "delete", "rename", "mode"]))
        if deed == "create" or file is None:
            after[draw(_NAMES)] = SourceFile("100644", draw(contents()))
        elif deed == "edit":
            after[name] = SourceFile(file.mode, draw(edited(file.data)))
        elif deed == "delete":
            del after[name]
        elif deed == "rename":
            moved = after.pop(name)
            after[draw(_NAMES)] = SourceFile(
                moved.mode, draw(edited(moved.data)) if draw(st.booleans()) else moved.data
            )
        else:
            after[name] = SourceFile("100755" if file.mode == "100644" else "100644", file.data)
    return after


@st.composite
def histories(draw: st.DrawFn, most: int = 4) -> list[dict[str, SourceFile]]:
    """A tree and what became of it, step by step; no step leaves it as it was."""
    steps = [draw(source_trees())]
    for _ in range(draw(st.integers(1, most))):
        after = draw(edited_trees(steps[-1]))
        if after != steps[-1] and after:
            steps.append(after)
    return steps
