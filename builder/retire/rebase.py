"""Carry a series to another release: what upstream has is left out, the rest goes through git and its
probes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import InvalidInput, PatchConflict, ProbeFailed, Unavailable, UsageError
from builder.patch.apply import apply_series
from builder.patch.canonical import Draft, write_patches
from builder.patch.message import Head
from builder.patch.patch import Patch, parse_patch, read_suppressions
from builder.patch.requirements import requirements_of
from builder.patch.series import Series, check_depends, read_series
from builder.printable import counted
from builder.probe.harness import Answer
from builder.probe.named_trees import pristine_tree
from builder.probe.trees import GitTree
from builder.project.project import Root
from builder.project.releases import known_releases, releases_after
from builder.project.spec import Spec, UpstreamSpec, read_spec
from builder.project.spec_edit import SpecText, bumped
from builder.project.transaction import write_all
from builder.retire.dependency import clashes, read_pins
from builder.retire.evaluate import check_accept_text, judge, says_no_probe
from builder.retire.probed import CachedProber
from builder.retire.retire import CHANGELOG, today, with_changelog
from builder.retire.selection import read_subject
from builder.retire.verdict import NEEDS_A_PERSON, NOT_ON_TEXT_ALONE, TAKEN_BY_UPSTREAM
from builder.retire.worktree import NAME_TRAILER, Carried, State, WorkTree
from builder.soundness.check import Checker
from builder.soundness.series import ALLOW, Change, check_whole, unsound_error
from builder.source.revision import Target, find_target
from builder.source.upstream import absolute_address

Say = Callable[[str], None]
MOST_BETWEEN = 12
"""How many releases between the pin and the new one are asked at most; the newest."""


@dataclass(frozen=True)
class Settings:
    """What the command line asks for.

    Args:
        name: the overlay.
        onto: the release, as :func:`builder.source.revision.find_target` takes it.
        new_name: the overlay that is written; the same one where it is moved.
        series: the directory below ``patches/`` that is written; None for the release's name.
        url: a mirror or local path of the upstream repository.
        source: ``wheel``, ``repository`` or ``auto``.
        accept_text: patches without a probe that are left out on text alone.
    """

    name: str
    onto: str
    new_name: str
    series: str | None = None
    url: str | None = None
    source: str = "auto"
    accept_text: tuple[str, ...] = ()


@dataclass(frozen=True)
class Move:
    """One patch in the new series: what its probe said of the new release without and with the series."""

    name: str
    before: Answer | None
    after: Answer | None
    changed: bool
    range_diff: str

    def as_json(self) -> dict[str, Any]:
        return {
            "patch": self.name,
            "before": self.before.state if self.before else None,
            "after": self.after.state if self.after else None,
            "changed": self.changed,
            "range_diff": self.range_diff,
        }


@dataclass(frozen=True)
class Rebased:
    """A series on its new release, written.

    Args:
        settings: what was asked for.
        series: where the patches are now.
        moves: the patches that were carried.
        dropped: those that were left out while carrying, and how: merged to nothing, or by hand.
        retired: those that were left out, and why.
        untied: patches that do not depend any more on others that are left out, and on which.
        base_unpinned: the base image's digests were of the old release and are gone from the spec.
        clashes: what the overlay and its patches require, and the new release's own pins exclude.
        notes: patched files that could not be looked at, or were broken before.
    """

    settings: Settings
    series: str
    moves: tuple[Move, ...]
    dropped: Mapping[str, str]
    retired: Mapping[str, str]
    untied: Mapping[str, tuple[str, ...]]
    base_unpinned: bool
    clashes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same facts for programs."""
        return {
            "overlay": self.settings.new_name,
            "series": self.series,
            "patches": [move.as_json() for move in self.moves],
            "dropped": dict(self.dropped),
            "retired": dict(self.retired),
            "untied": {name: list(others) for name, others in self.untied.items()},
            "base_unpinned": self.base_unpinned,
            "clashes": list(self.clashes),
            "notes": list(self.notes),
        }


def start(settings: Settings, work: Path, project: Root, cache: Path, *, say: Say) -> Rebased:
    """Begin a rebase, and end it where nothing needs a person.

    Args:
        settings: what is asked for.
        work: where the work tree is made; it is removed at the end.
        project: the root, a checkout.
        cache: the cache's directory.
        say: told what takes time.

    Raises:
        PatchConflict: a patch conflicts; it is open in the work tree.
        ProbeFailed: a patch is there and its probe does not say ``fixed``.
        InvalidInput: the overlay, the release or the names do not fit.
        Unavailable: sources cannot be fetched.
    """
    project.check_writable()
    subject, spec = read_subject(settings.name, project, cache, url=settings.url, progress=say)
    target = _target(settings, spec, project, cache, say)
    series = settings.series or _series_name(target)
    _check_room(settings, series, project)
    known = list(known_releases(project.path))
    between = _between(settings, spec, target, project, cache, say)
    check_accept_text(settings.accept_text, [subject.series], project.probes)
    report = judge(
        subject,
        [*between, target],
        project.probes,
        cache,
        known=known,
        accept_text=settings.accept_text,
        say=say,
    )
    found_there = report.on(target.name)
    retired = {
        found.patch: f"{found.verdict.word} since {found.evidence.history or found.target}: "
        + found.verdict.why
        for found in found_there
        if found.verdict.retirable
    }
    keep = [patch.name for patch in subject.series.patches if patch.name not in retired]
    needless = [
        found.patch
        for found in found_there
        if found.patch in retired and found.verdict.word not in TAKEN_BY_UPSTREAM
    ]
    say("making a work tree")
    merged = report.merge(target.name)
    url = None if settings.url is None else absolute_address(settings.url)
    asked: dict[str, Any] = dict(vars(settings)) | {"series": series, "url": url}
    to_rework = {f.patch: f.verdict.why for f in found_there if f.verdict.word in NEEDS_A_PERSON}
    tree = WorkTree.create(
        work, subject.pin, target.upstream, merged.applied.reports, keep, asked, retired, to_rework, needless,
        {step.name: step.there for step in merged.steps if step.there},
    )  # fmt: skip
    return _go_on(tree, project, cache, say)


def resume(
    name: str, work: Path, project: Root, cache: Path, *, accept_text: Sequence[str] = (), say: Say
) -> Rebased:
    """Go on with a rebase after a person has looked.

    Args:
        name: the overlay.
        work: its work tree.
        accept_text: more patches without a probe that are left out on text alone.
        project, cache, say: as in :func:`start`.

    Raises:
        InvalidInput: there is no rebase, or it is of another overlay.
        PatchConflict, ProbeFailed: as in :func:`start`.
    """
    tree = WorkTree(work)
    if tree.state().settings["name"] != name:
        other = str(tree.state().settings["name"])
        raise InvalidInput("the work tree is of another overlay", where=str(work), found=other)
    _accept(tree, accept_text, project)
    tree.resume()
    return _go_on(tree, project, cache, say)


def _accept(tree: WorkTree, names: Sequence[str], project: Root) -> None:
    """Note what a person retires on text alone."""
    if not names:
        return
    state = tree.state()
    series = read_series(
        project.patches / read_spec(project.spec_path(state.settings["name"])).patches.series
    )
    check_accept_text(names, [series], project.probes)
    accepted = [*state.settings.get("accept_text", ()), *names]
    tree.write_state(replace(state, settings=dict(state.settings) | {"accept_text": accepted}))


def abort(work: Path) -> None:
    """Give up a rebase: its work tree goes, and nothing else was changed.

    Raises:
        InvalidInput: there is no rebase.
    """
    tree = WorkTree(work)
    tree.state()
    tree.remove()


def _go_on(tree: WorkTree, project: Root, cache: Path, say: Say) -> Rebased:
    say("carrying patches")
    state = tree.carry()
    settings = Settings(
        **dict(state.settings) | {"accept_text": tuple(state.settings.get("accept_text", ()))}
    )
    subject, spec = read_subject(settings.name, project, cache, url=settings.url, progress=say)
    target = _target(settings, spec, project, cache, say)
    patches = {patch.name: patch for patch in subject.series.patches}
    carried = tree.carried()
    notes = _check_sound(tree, carried, target, cache)
    moves = _moves(tree, state, carried, target, project, cache, say)
    _check_accepted(tree, state, moves, patches)
    dropped = _dropped(tree, state, settings, carried, patches, project, cache)
    untied = _untied(tree, state, carried, dropped)
    written = _written(carried, moves, untied)
    series = str(state.settings["series"])
    rebased = Series(series, tuple(parse_patch(name, data) for name, data in written.items()))
    check_depends(rebased)
    apply_series(rebased, target.upstream.files(rebased.paths), tree.store, drop=spec.patches.drop)
    changes, unpinned = _changes(settings, spec, target, state, written, dropped, project)
    write_all(project.path, changes)
    tree.remove()
    required = requirements_of(rebased.patches, spec.requires)
    clashing = tuple(clashes(required, read_pins(pristine_tree(target.upstream)))) if required else ()
    return Rebased(settings, series, tuple(moves), dropped, state.retired, untied, unpinned, clashing, notes)


def _target(settings: Settings, spec: Spec, project: Root, cache: Path, say: Say) -> Target:
    target = find_target(
        settings.onto,
        spec.upstream,
        cache,
        url=settings.url,
        source=settings.source,
        root=project.path,
        progress=say,
    )
    if target.pin is None:
        raise UsageError(
            "a spec cannot pin this",
            found=settings.onto,
            hint="name a release; or a branch or commit, with --upstream-url for a local mirror",
        )
    return target


def _between(
    settings: Settings, spec: Spec, target: Target, project: Root, cache: Path, say: Say
) -> list[Target]:
    """The releases between the pin and a release: asked since which one a patch is not needed, and what was
    merged there and has gone on since. Those whose sources cannot be had are not asked."""
    after = releases_after(spec.upstream.release, project.path)
    names = after[: after.index(target.name)] if target.name in after else []
    find = partial(find_target, pin=spec.upstream, cache=cache, url=settings.url, source=settings.source)
    found = []
    for name in names[-MOST_BETWEEN:]:
        try:
            found.append(find(name, root=project.path, progress=say))
        except Unavailable as error:
            say(f"{name} is not asked: {error}")
    return found


def _series_name(target: Target) -> str:
    return target.pin.release if target.pin else target.name


def _check_room(settings: Settings, series: str, project: Root) -> None:
    """Nothing that is there already may be written over."""
    if (project.patches / series).exists():
        raise InvalidInput(
            "there is such a series already",
            where=str(project.patches / series),
            hint="name another directory with --series NAME",
        )
    if settings.new_name != settings.name and settings.new_name in project.names():
        raise InvalidInput(
            "there is an overlay of this name already",
            where=str(project.spec_path(settings.new_name)),
            hint="name another one with --as NAME",
        )


# --- what has to be right before anything is written --------------------------------------------------------


def _check_sound(tree: WorkTree, carried: Sequence[Carried], target: Target, cache: Path) -> tuple[str, ...]:
    """What was carried must still be Python.

    Returns:
        What could not be looked at, or was broken before.

    Raises:
        PatchConflict: it breaks something on the new release; the work tree stays open.
    """
    changes = [
        Change(
            patch.name,
            {path: patch.before.get(path) for path in [*patch.before, *patch.after]},
            {path: patch.after.get(path) for path in [*patch.before, *patch.after]},
            read_suppressions(value for key, value in patch.head.trailers() if key == ALLOW),
        )
        for patch in carried
    ]
    checker = Checker(cache)
    blamed, notes = check_whole(changes, pristine_tree(target.upstream), checker)
    checker.save()
    if blamed:
        patch, flaw = blamed[0]
        raise unsound_error(
            blamed,
            where=f"{tree.path}: {patch}, {flaw.place}",
            hint="fix the commit there (git commit --fixup, git rebase -i --autosquash), then --continue",
            facts={"worktree": str(tree.path)},
        )
    return notes


def _moves(
    tree: WorkTree,
    state: State,
    carried: Sequence[Carried],
    target: Target,
    project: Root,
    cache: Path,
    say: Say,
) -> list[Move]:
    """Ask every probe of the new release, pristine and carried.

    Raises:
        ProbeFailed: one does not say ``defect`` before and ``fixed`` after; it names them all.
    """
    say("asking the probes")
    pristine, result = pristine_tree(target.upstream), GitTree(tree.store.path, tree.head())
    moves = []
    with CachedProber(project.probes, cache) as prober:
        for patch in carried:
            probed = prober.has_probe(patch.name)
            before = prober.ask(patch.name, pristine) if probed else None
            after = prober.ask(patch.name, result) if probed else None
            original = state.originals[patch.name]
            changed = _lines(tree.diff(patch.commit)) != _lines(tree.diff(original))
            shown = tree.range_diff(original, patch.commit) if changed else ""
            moves.append(Move(patch.name, before, after, changed, shown))
    bad = [
        m for m in moves if m.before and m.after and (m.before.state, m.after.state) != ("defect", "fixed")
    ]
    if bad:
        lines = []
        for move in bad:
            for when, answer in (("before", move.before), ("after", move.after)):
                if answer is not None:
                    lines.append(f"{move.name}, {when}: {answer.state}: {answer.evidence}")
        raise ProbeFailed(
            "a carried patch does not do what its probe asks for; nothing was written"
            if len(bad) == 1
            else f"{len(bad)} carried patches do not do what their probes ask for; nothing was written",
            where=str(tree.path),
            expected="defect on the new release, fixed with the series",
            found=", ".join(move.name for move in bad),
            hint="fix their commits there (git commit --fixup, git rebase -i --autosquash), then --continue",
            details="\n".join(lines),
            facts={"worktree": str(tree.path), "patches": [move.as_json() for move in bad]},
        )
    return moves


def _check_accepted(
    tree: WorkTree, state: State, moves: Sequence[Move], patches: Mapping[str, Patch]
) -> None:
    """A merge that no probe vouches for is accepted by a person who was shown it; so is a patch that was
    judged to need a person although git merges it.

    Raises:
        PatchConflict: with the range-diffs; the next ``--continue`` accepts them.
    """
    doubtful = [m for m in moves if m.before is None and (m.changed or m.name in state.to_rework)]
    open_ = [move for move in doubtful if move.name not in state.shown]
    if not open_:
        return
    tree.write_state(replace(state, shown=(*state.shown, *(move.name for move in open_))))
    silent = {move.name for move in open_ if not says_no_probe(patches[move.name])}
    why = {move.name: " (and it does not say why)" if move.name in silent else "" for move in open_}
    why |= {m.name: f"{why[m.name]} (overlay diff says rework)" for m in open_ if m.name in state.to_rework}
    raise PatchConflict(
        "a merged patch has no probe that vouches for it"
        if len(open_) == 1
        else f"{len(open_)} merged patches have no probe that vouches for them",
        where=str(tree.path),
        found=", ".join(f"{move.name}{why[move.name]}" for move in open_),
        hint=f"read the difference below; overlay rebase {tree.overlay} --continue accepts it",
        details="\n".join(move.range_diff for move in open_),
        facts={"worktree": str(tree.path), "patches": [move.as_json() for move in open_]},
    )


def _dropped(
    tree: WorkTree,
    state: State,
    settings: Settings,
    carried: Sequence[Carried],
    patches: Mapping[str, Patch],
    project: Root,
    cache: Path,
) -> dict[str, str]:
    """The patches of which nothing is left although no verdict retired them, and how that came.

    What a person left out in the work tree is left out. What git merged to nothing goes by the rule that
    ``overlay diff`` has: by its probe, and without one not on text alone.

    Raises:
        PatchConflict: one may not be left out on what is known; it names them all.
    """
    there = {patch.name for patch in carried}
    result = GitTree(tree.store.path, tree.head())
    found: dict[str, str] = {}
    kept: dict[str, str] = {}
    with CachedProber(project.probes, cache) as prober:
        for name in state.order:
            if name in there:
                continue
            if name not in state.emptied:
                found[name] = "by hand"
            elif prober.has_probe(name):
                answer = prober.ask(name, result)
                said = f"nothing is left of it when merged, and its probe says {answer.state}"
                if answer.state == "fixed":
                    found[name] = said
                else:
                    kept[name] = f"{said}: {answer.evidence}"
            elif says_no_probe(patches[name]) or name in settings.accept_text:
                found[name] = "nothing is left of it when merged; it has no probe"
            else:
                kept[name] = f"nothing is left of it when merged; {NOT_ON_TEXT_ALONE}"
    if kept:
        unsaid = [name for name, why in kept.items() if why.endswith(NOT_ON_TEXT_ALONE)]
        accept = " ".join(f"--accept-text {name}" for name in unsaid)
        raise PatchConflict(
            "a patch was merged to nothing, and may not be left out for that" if len(kept) == 1
            else f"{len(kept)} patches were merged to nothing, and may not be left out for that",
            where=str(tree.path),
            found="; ".join(f"{name}: {why}" for name, why in kept.items()),
            hint=f"look at the release's own lines; then overlay rebase {settings.name} --continue {accept}"
            if unsaid
            else f"commit there what fixes it, with a trailer {NAME_TRAILER}: NAME, then --continue",
            facts={"worktree": str(tree.path), "patches": kept},
        )  # fmt: skip
    return found


def _untied(
    tree: WorkTree, state: State, carried: Sequence[Carried], dropped: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """The patches whose ``Overlay-Depends`` name others that are left out, since upstream has those.

    Raises:
        PatchConflict: one is left out for another reason, so nobody knows whether those on it still work.
    """
    left_out = {*state.retired, *dropped}
    not_there = {*state.needless, *(name for name, how in dropped.items() if how == "by hand")}
    untied: dict[str, tuple[str, ...]] = {}
    broken: dict[str, list[str]] = {}
    for patch in carried:
        depends = [name for value in _depends(patch.head) for name in value if name in left_out]
        if lost := [name for name in depends if name in not_there]:
            broken[patch.name] = lost
        elif depends:
            untied[patch.name] = tuple(depends)
    if broken:
        lost = sorted({name for names in broken.values() for name in names})
        why = {name: state.retired.get(name) or f"left out {dropped[name]}" for name in lost}
        raise PatchConflict(
            "a patch needs one that is left out, and that the release does not have",
            where=str(tree.path),
            expected=f"{', '.join(lost)} merged or fixed there, or carried",
            found="; ".join(
                [f"{name}: Overlay-Depends: {', '.join(names)}" for name, names in broken.items()]
                + [f"{name}: {said}" for name, said in why.items()]
            ),
            hint="carry it too, or look whether the patch works without it and take the trailer out of its "
            "commit's message (git rebase -i, reword); then --continue",
            facts={"worktree": str(tree.path), "patches": broken, "left_out": why},
        )
    return untied


def _depends(head: Head) -> list[list[str]]:
    """The names in the ``Overlay-Depends`` trailers."""
    values = (value for key, value in head.trailers() if key.lower() == "overlay-depends")
    return [[name for name in re.split(r"[,\s]+", value) if name] for value in values]


def _lines(diff: bytes) -> list[bytes]:
    """A diff without what only says where it is."""
    return [re.sub(rb"^@@ .*", b"@@", line) for line in diff.split(b"\n") if not line.startswith(b"index ")]


# --- what is written ----------------------------------------------------------------------------------------


def _written(
    carried: Sequence[Carried], moves: Sequence[Move], untied: Mapping[str, tuple[str, ...]]
) -> dict[str, bytes]:
    """The patch files by name, canonical; their date moves only where their content did."""
    changed = {move.name for move in moves if move.changed}
    drafts = [
        Draft(p.name, _head(p.head, p.name in changed, untied.get(p.name, ())), p.before, p.after)
        for p in carried
    ]
    return {draft.name: data for draft, data in zip(drafts, write_patches(drafts), strict=True)}


def _head(head: Head, changed: bool, untied: Sequence[str]) -> Head:
    lines = []
    for line in head.text.split(b"\n"):
        key, colon, value = line.partition(b":")
        if colon and key == b"Last-Update" and changed:
            line = b"Last-Update: " + today().isoformat().encode()
        elif colon and key.lower() == b"overlay-depends":
            left = [name for name in re.split(r"[,\s]+", value.decode()) if name and name not in untied]
            if not left:
                continue
            line = b"Overlay-Depends: " + ", ".join(left).encode()
        lines.append(line)
    text = Head(head.author, head.date, head.subject, b"\n".join(lines))
    if changed and not any(key == "Last-Update" for key, _ in text.trailers()):
        return text.with_trailer("Last-Update", today().isoformat())
    return text


def _changes(
    settings: Settings,
    spec: Spec,
    target: Target,
    state: State,
    written: Mapping[str, bytes],
    dropped: Mapping[str, str],
    project: Root,
) -> tuple[dict[PurePosixPath, bytes | None], bool]:
    series = str(state.settings["series"])
    directory = PurePosixPath("patches") / series
    changes: dict[PurePosixPath, bytes | None] = {
        directory / f"{name}.patch": data for name, data in written.items()
    }
    changes[directory / "series"] = _series_file(settings, spec, series, state, written, dropped)
    path = project.spec_path(settings.name)
    text = SpecText(path, path.read_bytes().decode("utf-8"))
    unpinned = _move_spec(text, settings, spec, target, series)
    changes[PurePosixPath("overlays") / f"{settings.new_name}.yaml"] = text.text.encode()
    if settings.new_name == settings.name and project.lock_path(settings.name).is_file():
        changes[PurePosixPath("overlays") / f"{settings.name}.lock"] = None
    log = project.path / CHANGELOG
    before = log.read_text("utf-8") if log.is_file() else ""
    version = text.get(("version",)) or ""
    names = [*state.retired, *dropped]
    left_out = f"; left out: {', '.join(names)}" if names else ""
    moved = f"{spec.upstream.release} to {series}, {counted(len(written), 'patch', 'patches')}{left_out}"
    line = f"{settings.new_name} {version}: {moved}"
    changes[CHANGELOG] = with_changelog(before, today(), line).encode()
    return changes, unpinned


def _series_file(
    settings: Settings,
    spec: Spec,
    series: str,
    state: State,
    written: Mapping[str, bytes],
    dropped: Mapping[str, str],
) -> bytes:
    lines = [f"# SGLang {series}, carried from {spec.patches.series} by overlay rebase {settings.name}.", "#"]
    for name, why in state.retired.items():
        lines.append(f"# {name} is left out: {' '.join(why.split())[:300]}")
    for name, how in dropped.items():
        lines.append(f"# {name} is left out: {' '.join(how.split())[:300]}")
    return "".join(f"{line}\n" for line in [*lines, *(f"{name}.patch" for name in written)]).encode()


def _move_spec(text: SpecText, settings: Settings, spec: Spec, target: Target, series: str) -> bool:
    """Move the pin; whether the base's digests, which are of the old release, were taken out."""
    pin = target.pin or UpstreamSpec(release=target.name)
    if settings.new_name != settings.name:
        text.set(("name",), settings.new_name)
        text.set(("version",), "1")
    else:
        text.set(("version",), bumped(spec.version))
    text.set(("date",), today().isoformat())
    text.set(("upstream", "release"), pin.release)
    if pin.commit is None:
        text.remove(("upstream", "commit"))
    else:
        text.set(("upstream", "commit"), pin.commit)
    if pin.wheel is None:
        text.remove(("upstream", "wheel"))
    elif spec.upstream.wheel is not None:
        text.set(("upstream", "wheel", "requirement"), pin.wheel.requirement)
        text.set(("upstream", "wheel", "sha256"), pin.wheel.sha256)
    else:
        text.add_lines(
            ("upstream",),
            ["wheel:", f"  requirement: {pin.wheel.requirement}", f"  sha256: {pin.wheel.sha256}"],
        )
    text.set(("patches", "series"), series)
    text.remove(("patches", "only"))
    text.remove(("patches", "except"))
    pinned = spec.base.index is not None or any(spec.base.platforms.values())
    text.remove(("base", "index"))
    text.remove(("base", "platforms"))
    return pinned
