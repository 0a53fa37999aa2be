"""Real upstream changes as patches against the release before: are they known as taken, and never too early?

    python -m benchmarks.taken [PATCHES A PAIR]

Each patch is what upstream did to one function between two adjacent releases, cut against the older one. The
newer release has it by construction, whatever is done to its surroundings; the older one, and all before it,
need it: ``merged`` is wrong there. On the newer one all else is work for a person that need not have been.
"""

from __future__ import annotations

import ast
import difflib
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from builder.patch.apply import try_series
from builder.patch.definitions import Definition, Outline, parse_source
from builder.patch.hunks import split_lines
from builder.patch.patch import Patch, parse_patch
from builder.patch.series import Series
from builder.project.project import cache_path
from builder.project.releases import known_releases
from builder.retire.evidence import TextEvidence
from builder.retire.normal_form import Steps, normal_form
from builder.retire.text import merge_series
from builder.retire.verdict import decide
from builder.source.files import SourceFile
from builder.source.merge_tree import open_scratch
from builder.source.upstream import Upstream, resolve_upstream

ROOT = "python/sglang/srt/"
MOST_LINES = 40


@dataclass(frozen=True)
class Taken:
    """One function of a file that upstream changed, and the patch that does so on the older release."""

    path: str
    name: str
    patch: Patch
    before: bytes
    after: bytes
    alone: bytes = field(repr=False)


@dataclass(frozen=True)
class Changed(Upstream):
    """A release with files of its own."""

    files_changed: Mapping[str, SourceFile] = field(default_factory=dict)

    def files(self, paths: Sequence[str]) -> dict[str, SourceFile]:
        found = super().files(paths)
        return found | {path: self.files_changed[path] for path in paths if path in self.files_changed}


def with_files(upstream: Upstream, changed: Mapping[str, bytes]) -> Changed:
    """The release with these contents."""
    files = {path: SourceFile("100644", data) for path, data in changed.items()}
    return Changed(upstream.release, upstream.kind, upstream.mounts, files)


def corpus(old: Upstream, new: Upstream, count: int, seed: int = 0) -> list[Taken]:
    """At most ``count`` changes of one function each, of different files, chosen by ``seed``."""
    was, now = old.entries(), new.entries()
    paths = sorted(
        path
        for path in was.keys() & now.keys()
        if path.startswith(ROOT) and path.endswith(".py") and was[path] != now[path]
    )
    chosen = random.Random(seed)
    chosen.shuffle(paths)
    found: list[Taken] = []
    for start in range(0, len(paths), 40):
        some = paths[start : start + 40]
        before, after = old.files(some), new.files(some)
        for path in some:
            options = [t for t in _changes(path, before[path].data, after[path].data) if _applies(t)]
            if options:
                found.append(chosen.choice(options))
            if len(found) == count:
                return found
    return found


def _changes(path: str, before: bytes, after: bytes) -> Iterator[Taken]:
    """Each function of a file whose change alone makes a patch of a usual size."""
    old, new = Outline(path, before), Outline(path, after)
    for definition in functions(after):
        was = old.named(definition.name)
        now = new.named(definition.name)
        if was is None or now is None or old.named(definition.name, 1) or old.text(was) == new.text(now):
            continue
        lines = [*old.lines[: was.start - 1], *split_lines(new.text(now)), *old.lines[was.end :]]
        alone = b"".join(lines)
        body = _diff(path, before, alone)
        added = [line for line in body if line.startswith("+") and line[1:].strip(" \n)]},")]
        changed = sum(line.startswith(("+", "-")) for line in body)
        if not added or changed > MOST_LINES or old.text(was).strip() == new.text(now).strip():
            continue
        name = re.sub(r"\W", "-", f"{path.rpartition('/')[2][:-3]}-{definition.name}")
        head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        above = f"From: t <t@example.org>\nSubject: {name}\n\nUpstream-Status: Pending\n---\n\n"
        mail = f"{above}{head}{''.join(body)}"
        yield Taken(
            path,
            definition.name,
            parse_patch(name, mail.encode("utf-8", "surrogateescape")),
            before,
            after,
            alone,
        )


def _applies(taken: Taken) -> bool:
    """Whether it has one place in the older release, and changes more than how the code is written."""
    sources = {taken.path: SourceFile("100644", taken.before)}
    steps = Steps(annotations=False, docstrings=False, imports=False)
    forms = []
    for data in (taken.before, taken.after):
        outline = Outline(taken.path, data)
        found = outline.named(taken.name)
        forms.append(normal_form(outline.text(found), steps) if found is not None else None)
    return forms[0] != forms[1] and not try_series(Series("taken", (taken.patch,)), sources).failed


def _diff(path: str, before: bytes, after: bytes) -> list[str]:
    old, new = ([line.decode("utf-8", "surrogateescape") for line in split_lines(d)] for d in (before, after))
    return list(difflib.unified_diff(old, new))[2:]


def functions(data: bytes) -> list[Definition]:
    """The functions of a file, without those in functions."""
    outline = Outline("x.py", data)
    tree = parse_source(data)
    found = []
    for node in tree.body if tree else ():
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for child in inner:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(outline.enclosing(child.lineno))
    return [definition for definition in found if definition.kind == "function"]


# --- what may have happened around it -----------------------------------------------------------------------


def _edited(taken: Taken, data: bytes, edit: Callable[[bytes], bytes | None]) -> bytes | None:
    """A file with the function edited; None where that cannot be done."""
    outline = Outline(taken.path, data)
    found = outline.named(taken.name)
    text = edit(outline.text(found)) if found is not None else None
    if found is None or text is None or text == outline.text(found):
        return None
    return b"".join([*outline.lines[: found.start - 1], text, *outline.lines[found.end :]])


def neighbour_inserted(text: bytes) -> bytes | None:
    """A line more at the function's beginning."""
    tree = parse_source(text)
    node = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None) if tree else None
    if node is None:
        return None
    shift = 1 if text[:1] in (b" ", b"\t") else 0
    lines = split_lines(text)
    first = node.body[1] if len(node.body) > 1 else node.body[0]
    at = first.lineno - 1 - shift
    return b"".join([*lines[:at], b" " * first.col_offset + b"neighbour_of_it = None\n", *lines[at:]])


def local_renamed(text: bytes) -> bytes | None:
    """One local variable, of which no text in the function speaks, under another name."""
    tree = parse_source(text)
    nodes = list(ast.walk(tree)) if tree else []
    said = " ".join(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    stored = [n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    for name in dict.fromkeys(name for name in stored if name not in said):
        pattern = rb"(?<![\w.])" + name.encode() + rb"(?!\w|=[^=])"
        renamed = re.sub(pattern, name.encode() + b"_renamed", text)
        if parse_source(renamed) is not None and renamed != text:
            return renamed
    return None


def reformatted(text: bytes) -> bytes | None:
    """As ``ast.unparse`` writes it, without comments."""
    tree = parse_source(text)
    if tree is None:
        return None
    wrapped = text[:1] in (b" ", b"\t")
    written = ast.unparse(tree)
    if wrapped:
        written = "\n".join(written.split("\n")[1:])
    return written.encode("utf-8", "surrogateescape") + b"\n"


def annotated(text: bytes) -> bytes | None:
    """With the type of the result said."""
    tree = parse_source(text)
    node = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None) if tree else None
    if node is None or node.returns is not None:
        return None
    found = re.sub(rb"\)\s*:[ \t]*\n", b") -> object:\n", text, count=1)
    return found if parse_source(found) is not None else None


VARIANTS: dict[str, Callable[[bytes], bytes | None]] = {
    "a neighbour line inserted": neighbour_inserted,
    "a local variable renamed": local_renamed,
    "written in another format": reformatted,
    "an annotation added": annotated,
}


def copied(taken: Taken, data: bytes) -> bytes:
    """The file with the patched function a second time, as another one's."""
    patched = Outline(taken.path, taken.alone)
    found = patched.named(taken.name)
    text = patched.text(found) if found is not None else b""
    short = taken.name.rpartition(".")[2].encode()
    other = re.sub(rb"\bdef " + re.escape(short) + rb"\b", b"def a_sibling_of_" + short, text, count=1)
    return (
        data.rstrip(b"\n")
        + b"\n\n\nclass Copied:\n"
        + (other if other[:1] == b" " else b"".join(b"    " + line for line in split_lines(other)))
    )


def renamed(taken: Taken, data: bytes) -> bytes | None:
    """The file with the function under another name."""
    short = taken.name.rpartition(".")[2].encode()
    return _edited(
        taken, data, lambda text: re.sub(rb"\bdef " + re.escape(short) + rb"\b", b"def gone_" + short, text)
    )


# --- measured -----------------------------------------------------------------------------------------------


def judged(patches: Sequence[Taken], pin: Upstream, target: Upstream) -> dict[str, TextEvidence]:
    """The evidence by text of patches of different files, by name."""
    with open_scratch() as scratch:
        series = Series("taken", tuple(taken.patch for taken in patches))
        return dict(merge_series(series, pin, target, scratch).evidence)


def word(evidence: TextEvidence) -> str:
    """The verdict on a patch without a probe, with the kind of proof where it is ``merged``."""
    verdict = decide(evidence, None).word
    return f"{verdict} by {evidence.proof}" if verdict == "merged" else verdict


@dataclass
class Tally:
    """Verdicts by what had happened, and the wrong ones one by one."""

    taken: dict[str, Counter[str]] = field(default_factory=dict)
    needed: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, what: str, found: Mapping[str, TextEvidence], *, needed: bool) -> None:
        rows = (self.needed if needed else self.taken).setdefault(what, Counter())
        for name, evidence in found.items():
            said = word(evidence)
            rows[said] += 1
            if needed and said.startswith("merged"):
                self.wrong.append(f"{what}: {name}: {said}: {evidence.how}")


def measure(releases: Mapping[str, Upstream], count: int, tally: Tally, *, seed: int = 0) -> Tally:
    """Judge ``count`` changes of each pair of adjacent releases on all of them, and on variants."""
    names = list(releases)
    for number, (old, new) in enumerate(pairwise(names)):
        pin, target = releases[old], releases[new]
        patches = corpus(pin, target, count, seed)
        by_path = {taken.path: taken for taken in patches}
        for later in names[number + 1 :]:
            what = "the next release" if later == new else "later releases"
            tally.add(what, judged(patches, pin, releases[later]), needed=False)
        for what, edit in VARIANTS.items():
            files = {p: d for p, t in by_path.items() if (d := _edited(t, t.after, edit)) is not None}
            some = [by_path[path] for path in files]
            tally.add(f"the next release, {what}", judged(some, pin, with_files(target, files)), needed=False)
        _needed(tally, patches, pin, [releases[name] for name in names[:number]])
    return tally


def _needed(tally: Tally, patches: Sequence[Taken], pin: Upstream, earlier: Sequence[Upstream]) -> None:
    tally.add("the release it is cut for", judged(patches, pin, pin), needed=True)
    for release in earlier:
        tally.add("earlier releases", judged(patches, pin, release), needed=True)
    for what, edit in VARIANTS.items():
        files = {t.path: d for t in patches if (d := _edited(t, t.before, edit)) is not None}
        some = [taken for taken in patches if taken.path in files]
        tally.add(f"needed, {what}", judged(some, pin, with_files(pin, files)), needed=True)
    files = {taken.path: copied(taken, taken.before) for taken in patches}
    tally.add("needed, a sibling has its lines", judged(patches, pin, with_files(pin, files)), needed=True)
    files = {t.path: d for t in patches if (d := renamed(t, t.before)) is not None}
    some = [taken for taken in patches if taken.path in files]
    tally.add("needed, the function renamed", judged(some, pin, with_files(pin, files)), needed=True)


def all_releases() -> dict[str, Upstream]:
    """Every known release, from its wheel in the cache."""
    return {
        name: resolve_upstream(pin, cache_path(), source="wheel") for name, pin in known_releases().items()
    }


def render(tally: Tally, count: int) -> str:
    """The counts, as a table of each kind."""
    lines = [
        "## What upstream did, as patches",
        "",
        "What upstream did to one function between two adjacent releases, cut as a patch without a probe",
        f"for the older one: at most {count} of each pair, of files chosen by a fixed seed, judged on every",
        "known release and on variants (`benchmarks/taken.py`). The newer release has it, whatever was",
        "done beside it; the older one and all before need it. Later ones may have taken it back or gone on,",
        "so every verdict may be right there. `merged` where a patch is needed is wrong, and fails the run.",
        "",
    ]
    for title, table in (("Taken by upstream", tally.taken), ("Needed", tally.needed)):
        words = sorted({word for row in table.values() for word in row})
        lines += [f"| {title} | " + " | ".join(words) + " |", "|---" * (len(words) + 1) + "|"]
        lines += [
            f"| {what} | " + " | ".join(str(row[w] or "") for w in words) + " |"
            for what, row in table.items()
        ]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    tally = measure(all_releases(), count, Tally())
    print(render(tally, count))
    print("\n".join(tally.wrong))
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
