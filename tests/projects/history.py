"""A small upstream with a history, patches cut for it, and probes that run what it holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from builder.patch.patch import Patch, parse_patch
from builder.patch.series import Series
from builder.retire.evaluate import Report, Subject, judge
from builder.source.git import GitStore, git_environment
from builder.source.revision import Target
from builder.source.upstream import Mount, Upstream
from tests import forked

DEMO = "python/sglang/demo.py"
P0_BEFORE = b"def f():\n    a = 1\n\n    b = 2\n    return a + b\n"
P0_AFTER = P0_BEFORE.replace(b"b = 2", b"b = 3")

_WHO = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "t"), ("EMAIL", "t@example.org"), ("DATE", "1700000000 +0000"))
}

RUNS_F = f"""
from builder.probe.harness import absent, defect, fixed, unknown

def probe(tree):
    if {DEMO!r} not in tree:
        return unknown("demo was not found")
    found = {{}}
    exec(tree.read({DEMO!r}), found)
    if "caller" in found and "f" not in found:
        return absent("the caller asks no f", {DEMO!r} + ":caller")
    if "f" not in found:
        return unknown("f was not found: nothing defines it")
    value = found["f"]()
    return fixed(f"f() is {{value}}") if value == 4 else defect(f"f() is {{value}}, not 4")
"""


class HistoryProject:
    """Makes commits, patches and probes below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.repository = directory / "upstream"
        self.probes = directory / "probes"
        self.cache = directory / "cache"
        self.state = directory / "state"
        self.repository.mkdir()
        self.probes.mkdir()
        self.git("init", "--quiet")
        self.git("commit", "--quiet", "--allow-empty", "-m", "root")

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.repository, input=stdin, env=git_environment(_WHO),
            capture_output=True, check=True,
        )  # fmt: skip
        return done.stdout.decode(errors="surrogateescape").strip()

    def commit(
        self, files: Mapping[str, bytes | None], message: str = "change", *, tag: str | None = None
    ) -> str:
        """Commit these files on top of HEAD; None removes one."""
        for path, data in files.items():
            file = self.repository / path
            if data is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        if tag:
            self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def load(self, files: Mapping[str, bytes]) -> str:
        """A commit without parents of exactly these files; HEAD and the work tree stay as they are."""
        rows = [b"commit refs/lab/load\ncommitter t <t@example.org> 0 +0000\ndata 0\ndeleteall\n"]
        rows += [b"M 100644 inline %s\ndata %d\n%s\n" % (p.encode(), len(d), d) for p, d in files.items()]
        self.git("fast-import", "--quiet", "--force", stdin=b"".join(rows))
        return self.git("rev-parse", "refs/lab/load")

    def chain(self, on: str, count: int, demo: Callable[[int], bytes]) -> tuple[str, list[str]]:
        """``count`` commits on top of one, each with a demo of its own; the last one and all of them."""
        rows = [b"reset refs/lab/chain\nfrom %s\n\n" % on.encode()]
        for number in range(count):
            message, data = b"commit %d (#%d)" % (number, number), demo(number)
            rows.append(b"commit refs/lab/chain\ncommitter t <t@example.org> %d +0000\n" % number)
            rows.append(b"data %d\n%s\n" % (len(message), message))
            rows.append(b"M 100644 inline %s\ndata %d\n%s\n" % (DEMO.encode(), len(data), data))
            rows.append(b"M 100644 inline n\ndata %d\n%d\n" % (len(str(number)), number))
        self.git("fast-import", "--quiet", "--force", stdin=b"".join(rows))
        commits = self.git("rev-list", "--reverse", f"{on}..refs/lab/chain").split()
        return commits[-1], commits

    def patch(
        self, name: str, on: str, files: Mapping[str, bytes | None], *trailers: str, status: str = "Pending"
    ) -> Patch:
        """A patch that makes these changes on a commit; HEAD and the work tree stay as they are."""
        before = self.git("rev-parse", "HEAD")
        self.git("checkout", "--quiet", on)
        self.commit(files, name)
        made = subprocess.run(
            ["git", "diff", "--full-index", "-M", "HEAD^", "HEAD"], cwd=self.repository,
            env=git_environment(), capture_output=True, check=True,
        )  # fmt: skip
        self.git("checkout", "--quiet", before)
        return parse_patch(name, mail(name, made.stdout, *trailers, status=status))

    def after(self, on: str, *patches: Patch) -> str:
        """A commit with these patches applied, for cutting the next one; HEAD stays as it is."""
        before = self.git("rev-parse", "HEAD")
        self.git("checkout", "--quiet", on)
        for patch in patches:
            self.git("apply", "--index", "-", stdin=patch.diff)
        self.git("commit", "--quiet", "-m", "patched")
        made = self.git("rev-parse", "HEAD")
        self.git("checkout", "--quiet", before)
        return made

    def probe(self, name: str, text: str = RUNS_F) -> None:
        (self.probes / f"{name}.py").write_text(text)

    def upstream(self, revision: str) -> Upstream:
        store = GitStore(self.repository / ".git")
        commit = store.resolve(revision)
        assert commit is not None, revision
        return Upstream(revision, "repository", (Mount("", store, commit),))

    def judge(
        self,
        pin: str,
        patches: list[Patch],
        *targets: str,
        release: str = "v1.0.0",
        history: bool = True,
        timeout: float | None = None,
    ) -> Report:
        """The verdicts of a series cut for ``pin``."""
        subject = Subject("demo", "1", release, pin, self.upstream(pin), Series("demo", tuple(patches)))
        named = [
            Target(target, self.upstream(target), None, self.repository if history else None, target)
            for target in targets
        ]
        return judge(
            subject, named, self.probes, self.cache, known=sorted({release, *targets}), timeout=timeout
        )


SPEC = """\
# The demo. Comments stay.
name: demo
version: "1"  # of the overlay
date: 2026-11-29
summary: a demo

upstream:
  repository: {repository}
  release: {release}
  commit: {commit}  # the pin

base:
  image: registry.example/sglang

patches:
  series: {release}
  {lists}
environment:
  SGLANG_X: "1"  # why
"""


def write_root(
    lab: HistoryProject,
    root: Path,
    pin: str,
    patches: list[Patch],
    *,
    release: str = "v1.0.0",
    lists: str = "",
) -> Path:
    """A root with one overlay ``demo``, its series and the lab's probes."""
    series = root / "patches" / release
    series.mkdir(parents=True)
    (root / "overlays").mkdir()
    (root / "Dockerfile.in").write_text("FROM {{ base }}\n")
    shutil.copytree(lab.probes, root / "patches" / "probes")
    text = SPEC.format(repository=lab.repository, release=release, commit=pin, lists=lists)
    (root / "overlays" / "demo.yaml").write_text(text)
    (series / "series").write_text("# the series\n" + "".join(f"# {p.name} is\n{p.name}\n" for p in patches))
    for patch in patches:
        (series / f"{patch.name}.patch").write_bytes(patch.data)
    return root


def overlay(
    lab: HistoryProject, root: Path, *arguments: str, cwd: Path = Path(__file__).parents[2]
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    environment = dict(os.environ) | {"OVERLAY_CACHE": str(lab.cache), "OVERLAY_ROOT": str(root)}
    environment |= {"XDG_STATE_HOME": str(lab.state), "SOURCE_DATE_EPOCH": "1800000000"}
    code, out, err = forked.run("overlay", arguments, cwd=cwd, environment=environment, timeout=300)
    return subprocess.CompletedProcess(["overlay", *arguments], code, out.decode(), err.decode())


def mail(name: str, diff: bytes, *trailers: str, status: str = "Pending") -> bytes:
    """A mailbox patch around a diff."""
    lines = [f"Upstream-Status: {status}", *trailers]
    head = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: T <t@example.org>\n"
        f"Date: Sun, 29 Nov 2026 00:00:00 +0000\nSubject: {name}\n\nWhy.\n\n" + "\n".join(lines) + "\n---\n\n"
    )
    return head.encode() + diff
