"""What containers are started with, held against the base's config, the record's labels and the manifest.

The values of variables that nobody declared are never shown: they may be somebody's keys.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from builder.build.plan import RECORD_LABELS
from builder.oci.append import OF_ITS_OWN_BASE
from builder.oci.settings import Settings, Words, read_settings, said_over
from builder.record.manifest import MANIFEST_PATH, Manifest
from builder.verify.deviation import Deviation

# What an engine gives every container whose image says nothing.
_ENGINE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SECRET = re.compile(r"key|token|password|secret|credential", re.IGNORECASE)


@dataclass(frozen=True)
class RankSettings:
    """What ``overlay launch`` sets for a rank, over what its image says.

    Args:
        fixed: variables with their one value.
        free: variables whose value is the rank's own.
        command: how its command begins.
        own_options: options of the command that each rank has of its own.
        health: its health check, as a pattern of the whole command.
    """

    fixed: Mapping[str, str] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    command: Words = ()
    own_options: frozenset[str] = frozenset()
    health: re.Pattern[str] | None = None

    def sets(self, name: str, value: str) -> bool:
        """Whether launch sets this variable, to this value."""
        return name in self.free or (name in self.fixed and self.fixed[name] == value)

    def starts(self, command: Words) -> bool:
        return bool(self.command) and command[: len(self.command)] == self.command

    def without(self, started: Settings, image: Settings) -> Settings:
        """The settings of a container as if launch had set nothing over its image."""
        kept = {name: value for name, value in started.environment.items() if not self.sets(name, value)}
        said = {name: image.environment[name] for name in started.environment if name in image.environment}
        return replace(
            started,
            environment=said | kept,
            command=image.command if self.starts(started.command) else started.command,
            healthcheck=image.healthcheck if self.asks(started.healthcheck) else started.healthcheck,
        )

    def asks(self, healthcheck: str) -> bool:
        """Whether this is launch's health check."""
        test = json.loads(healthcheck).get("Test") if healthcheck else None
        if self.health is None or not isinstance(test, list) or not all(isinstance(one, str) for one in test):
            return False
        kind, *words = test or [""]
        said = shlex.join(words) if kind == "CMD" else " ".join(words)
        return kind in ("CMD", "CMD-SHELL") and self.health.fullmatch(said) is not None


@dataclass(frozen=True)
class Compared:
    """What a config says otherwise: what nobody declared, and what somebody did."""

    deviations: tuple[Deviation, ...]
    declared: tuple[str, ...]


def expected_settings(manifest: Manifest, base: Settings) -> Settings:
    """The settings of an image with this manifest on this base, without the labels of its record.

    Raises:
        ImageMismatch: what the template declares is recorded in another form than a config has.
    """
    labels = {key: text for key, text in base.labels.items() if key not in OF_ITS_OWN_BASE}
    expected = replace(base, environment={**base.environment, **manifest.environment}, labels=labels)
    record = manifest.entrypoint
    if record is None:
        return expected
    volumes = record.declared.get("Volumes")
    said = dict(record.declared) | ({"Volumes": dict.fromkeys(volumes)} if isinstance(volumes, list) else {})
    declared = read_settings(said, f"{MANIFEST_PATH}: entrypoint.declared")
    return replace(
        expected,
        entrypoint=record.entrypoint,
        command=record.command,
        user=record.user,
        working_dir=record.working_dir,
        stop_signal=declared.stop_signal if "StopSignal" in said else base.stop_signal,
        volumes=declared.volumes if "Volumes" in said else base.volumes,
        on_build=declared.on_build if "OnBuild" in said else base.on_build,
        healthcheck=declared.healthcheck if "Healthcheck" in said else base.healthcheck,
        labels=labels | dict(declared.labels),
    )


def compare_settings(found: Settings, expected: Settings, base: Settings, rank: RankSettings) -> Compared:
    """What settings say otherwise than expected.

    Args:
        found: of the image or container.
        expected: as :func:`expected_settings` gives them.
        base: of the base; what is expected beyond it was declared by spec and template.
        rank: what a container may be started with beside that; nothing for an image.
    """
    deviations = [*_variables(found, expected, rank), *_words(found, expected, rank)]
    deviations += _labels(found.labels, expected.labels)
    deviations += [
        Deviation("config", name, "is there twice: which value counts depends on the engine")
        for name in found.repeated
        if name not in base.repeated
    ]
    declared = [*_declared(expected, base), *_of_a_rank(found, expected, rank)]
    return Compared(tuple(deviations), tuple(declared))


def _variables(found: Settings, expected: Settings, rank: RankSettings) -> Iterator[Deviation]:
    for name in sorted(found.environment.keys() | expected.environment.keys()):
        value, wanted = found.environment.get(name), expected.environment.get(name)
        if value == wanted or (value is not None and rank.sets(name, value)):
            continue
        if value is None:
            yield Deviation("config", name, "the variable is not set", expected=wanted)
        elif wanted is None and not (name == "PATH" and value == _ENGINE_PATH):
            yield Deviation("config", name, "a variable that neither base nor overlay declares is set")
        elif wanted is not None:
            what = "the variable has another value (which is not shown)"
            yield Deviation("config", name, what, expected=wanted)


def _words(found: Settings, expected: Settings, rank: RankSettings) -> Iterator[Deviation]:
    values, wanted = plain(found), plain(expected)
    for key in different_keys(found, expected):
        is_ranks = (key == "Cmd" and rank.starts(found.command)) or (
            key == "Healthcheck" and rank.asks(found.healthcheck)
        )
        if not is_ranks:
            what = "not what base and overlay declare"
            yield Deviation("config", key, what, wanted[key] or "none", values[key] or "none")


def different_keys(first: Settings, second: Settings) -> Iterator[str]:
    """The keys of :func:`plain` in which settings differ, also where people are not shown the difference."""
    ours, theirs = plain(first), plain(second)
    commands = {"Entrypoint": "entrypoint", "Cmd": "command"}
    for key in ours:
        name = commands.get(key)
        is_same = getattr(first, name) == getattr(second, name) if name else ours[key] == theirs[key]
        if not is_same:
            yield key


def plain(settings: Settings) -> dict[str, str]:
    """What people read of settings, by the keys of a config; without variables and labels."""
    return {
        "Entrypoint": shown(settings.entrypoint),
        "Cmd": shown(settings.command),
        "User": settings.user,
        "WorkingDir": settings.start_directory,
        "Volumes": " ".join(settings.volumes),
        "OnBuild": "; ".join(settings.on_build),
        "Healthcheck": settings.healthcheck,
        "StopSignal": settings.stop_signal,
    }


def shown(words: Words) -> str:
    """A command for people; what follows an option that sounds like a secret is left out."""
    parts, hide = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        is_option = word.startswith("-")
        if hide and not is_option:
            parts.append("…")
        elif is_option and equals and _SECRET.search(name):
            parts.append(f"{name}=…")
        else:
            parts.append(shlex.quote(word))
        hide = is_option and not equals and _SECRET.search(name) is not None
    return " ".join(parts)


def _labels(found: Mapping[str, str], expected: Mapping[str, str]) -> Iterator[Deviation]:
    """Labels beside those of the record, which are held against the manifest."""
    for key in sorted(found.keys() | expected.keys()):
        if key not in RECORD_LABELS and found.get(key) != expected.get(key):
            what = "a label that is not what base and overlay declare"
            yield Deviation("config", key, what, expected.get(key, "none"), found.get(key, "none"))


def compare_annotations(found: Mapping[str, str], base: Mapping[str, str]) -> Iterator[Deviation]:
    """Annotations beside those of the record must be the base's; engines drop them all."""
    inherited = {key: text for key, text in base.items() if key not in OF_ITS_OWN_BASE}
    for key, text in sorted(found.items()):
        if key not in RECORD_LABELS and inherited.get(key) != text:
            what = "an annotation that is not the base's"
            yield Deviation("config", key, what, inherited.get(key, "none"), text)


def _declared(expected: Settings, base: Settings) -> Iterator[str]:
    """What spec and template say over the base, as the manifest records it."""
    for name, value in sorted(expected.environment.items()):
        if base.environment.get(name) != value:
            yield f"{name}={value}"
    yield from (f"{key} {plain(expected)[key] or 'none'}" for key in different_keys(base, expected))
    labels = said_over(Settings(labels=expected.labels), Settings(labels=base.labels)).get("Labels", {})
    yield from (f"label {key}" for key in sorted(labels))


def _of_a_rank(found: Settings, expected: Settings, rank: RankSettings) -> Iterator[str]:
    for name, value in sorted(found.environment.items()):
        if expected.environment.get(name) != value and rank.sets(name, value):
            yield f"{name}={value} (as launch sets it for a rank)"
    if found.command != expected.command and rank.starts(found.command):
        yield f"Cmd {shown(found.command)} (as launch starts a rank)"
    if found.healthcheck != expected.healthcheck and rank.asks(found.healthcheck):
        yield "Healthcheck (as launch asks a rank)"


def differing(
    names: Iterable[str], found: tuple[Settings, Settings], ranks: RankSettings
) -> Iterator[Deviation]:
    """What two images or containers are started with, one otherwise than the other.

    Args:
        names: what the two are called.
        found: their settings.
        ranks: what each rank has of its own: two ranks may differ in that.
    """
    first, second = found
    between = "differs between " + " and ".join(names)
    for name in sorted(first.environment.keys() | second.environment.keys()):
        if name in ranks.free or first.environment.get(name) == second.environment.get(name):
            continue
        one_sided = [name in one.environment for one in found]
        what = f"{between}: the values are not shown" if all(one_sided) else f"{between}: one sets it"
        yield Deviation("config", name, what)
    ours, theirs = (replace(one, command=_shared(one.command, ranks)) for one in found)
    for key in different_keys(ours, theirs):
        yield Deviation("config", key, between, plain(ours)[key] or "none", plain(theirs)[key] or "none")
    for key in sorted(first.labels.keys() | second.labels.keys()):
        if key not in RECORD_LABELS and first.labels.get(key) != second.labels.get(key):
            yield Deviation(
                "config", key, between, first.labels.get(key, "none"), second.labels.get(key, "none")
            )


def _shared(command: Words, ranks: RankSettings) -> Words:
    """A command without what each rank has of its own."""
    if not ranks.starts(command):
        return command
    kept: list[str] = []
    skip = False
    for word in command:
        if not skip and word.partition("=")[0] not in ranks.own_options:
            kept.append(word)
        skip = not skip and word in ranks.own_options
    return tuple(kept)
