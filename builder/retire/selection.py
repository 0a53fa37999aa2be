"""From names to what is judged: an overlay's series with its pin, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.patch.series import read_series
from builder.project.project import Root
from builder.project.spec import Spec, read_spec
from builder.retire.evaluate import Subject
from builder.source.revision import Target, expand_names, find_target, pin_target
from builder.source.upstream import Progress, peeled, resolve_upstream


def read_subject(
    name: str, project: Root, cache: Path, *, url: str | None = None, progress: Progress
) -> tuple[Subject, Spec]:
    """An overlay's series and the sources that it is pinned to.

    Args:
        name: the overlay.
        project: where overlays and patches are.
        cache: where sources are kept.
        url: a mirror or local path of the upstream repository, for a pin without a wheel.
        progress: told what takes time.

    Raises:
        InvalidInput: the spec, the series or the pin is not sound.
        Unavailable: the pin cannot be fetched.
    """
    spec = read_spec(project.spec_path(name))
    series = read_series(
        project.patches / spec.patches.series, only=spec.patches.only, leave_out=spec.patches.leave_out
    )
    source = "wheel" if spec.upstream.wheel is not None else "repository"
    upstream = resolve_upstream(spec.upstream, cache, source=source, url=url, progress=progress)
    pin = peeled(spec.upstream, upstream)
    drop, repository = spec.patches.drop, pin.repository
    subject = Subject(name, spec.version, pin.release, pin.commit, upstream, series, drop, repository)
    return subject, spec


def find_targets(
    spec: Spec,
    subject: Subject,
    upstreams: Sequence[str],
    cache: Path,
    *,
    url: str | None,
    source: str,
    root: Path,
    history: bool,
    progress: Progress,
) -> list[Target]:
    """The trees to judge on, in the order in which they were named; none named means the pin itself.

    Args:
        spec, subject: of the overlay.
        upstreams: what ``--upstream`` names (see :func:`builder.source.revision.find_target`).
        cache: where sources are kept.
        url: a mirror or local path of the upstream repository.
        source: for releases: ``wheel``, ``repository`` or ``auto``.
        root: a directory whose ``releases.yaml`` is read as well.
        history: fetch the commits since the pin as well.
        progress: told what takes time.

    Raises:
        InvalidInput: there is no such target.
        Unavailable: it cannot be fetched.
    """
    targets = []
    for name in expand_names(tuple(upstreams), spec.upstream, root):
        if name == spec.upstream.release and source == "auto":
            targets.append(pin_target(spec.upstream, subject.pin))
        else:
            targets.append(
                find_target(
                    name,
                    spec.upstream,
                    cache,
                    url=url,
                    source=source,
                    root=root,
                    history=history,
                    progress=progress,
                )
            )
    return targets
