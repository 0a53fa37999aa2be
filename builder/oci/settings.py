"""What a config says of its image's containers: environment, entry point, user and the rest.

A registry's config blob and what a Docker Engine says of an image or container have it in one form.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from builder.errors import ImageMismatch
from builder.oci.document import json_object

Words = tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """The settings of a config that decide what runs, each empty where it says nothing.

    Args:
        environment: variables, by name.
        entrypoint, command: what is started; command is also what people give instead of it.
        user, working_dir, stop_signal: as written.
        volumes: directories.
        on_build: instructions for who builds on it.
        healthcheck: as JSON, its keys sorted.
        labels: by name.
        repeated: variables that are there twice; the last value is the one in ``environment``.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Words = ()
    command: Words = ()
    user: str = ""
    working_dir: str = ""
    stop_signal: str = ""
    volumes: Words = ()
    on_build: Words = ()
    healthcheck: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    repeated: Words = ()

    @property
    def started(self) -> Words:
        """The entry point with its command."""
        return (*self.entrypoint, *self.command)

    @property
    def start_directory(self) -> str:
        """Where containers start."""
        return self.working_dir if self.working_dir.startswith("/") else "/"

    def with_environment(self, more: Mapping[str, str]) -> Settings:
        return replace(self, environment={**self.environment, **more})


def settings_of(config: bytes) -> Settings:
    """The settings of a config blob.

    Raises:
        ImageMismatch: they are of another form.
    """
    return read_settings(json_object(config, "image config").get("config"), "image config")


def read_settings(value: object, where: str) -> Settings:
    """The settings that are the ``config`` of a config blob, or the ``Config`` of an engine.

    Args:
        value: the object.
        where: names it in errors.

    Raises:
        ImageMismatch: they are of another form.
    """
    inner = {} if value is None else value
    if not isinstance(inner, dict):
        raise _broken(where, "settings that are not an object")
    entries = _words(inner, "Env", where)
    return Settings(
        environment=dict(entry.partition("=")[::2] for entry in entries),
        entrypoint=_words(inner, "Entrypoint", where),
        command=_words(inner, "Cmd", where),
        user=_text(inner, "User", where),
        working_dir=_text(inner, "WorkingDir", where),
        stop_signal=_text(inner, "StopSignal", where),
        volumes=tuple(sorted(_object(inner, "Volumes", where))),
        on_build=_words(inner, "OnBuild", where),
        healthcheck=_sorted(_object(inner, "Healthcheck", where)),
        labels=_labels(_object(inner, "Labels", where), where),
        repeated=_repeated(entry.partition("=")[0] for entry in entries),
    )


def said_over(settings: Settings, base: Settings) -> dict[str, Any]:
    """What settings say otherwise than a base's, beside environment and start, by the config's own keys."""
    said: dict[str, Any] = {}
    if labels := {key: text for key, text in settings.labels.items() if base.labels.get(key) != text}:
        said["Labels"] = labels
    if settings.volumes != base.volumes:
        said["Volumes"] = list(settings.volumes)
    if settings.on_build != base.on_build:
        said["OnBuild"] = list(settings.on_build)
    if settings.stop_signal != base.stop_signal:
        said["StopSignal"] = settings.stop_signal
    if settings.healthcheck != base.healthcheck:
        said["Healthcheck"] = json.loads(settings.healthcheck or "{}")
    return said


def _repeated(names: Iterable[str]) -> Words:
    return tuple(sorted(name for name, count in Counter(names).items() if count > 1))


def _sorted(value: Mapping[str, Any]) -> str:
    said = {key: one for key, one in value.items() if one not in (None, 0, [])}
    return json.dumps(said, sort_keys=True) if said else ""


def _labels(value: Mapping[str, Any], where: str) -> dict[str, str]:
    if not all(isinstance(text, str) for text in value.values()):
        raise _broken(where, "labels that are not an object of strings")
    return dict(value)


def _object(inner: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = inner.get(key) or {}
    if not isinstance(found, dict):
        raise _broken(where, f"{key} that is not an object")
    return found


def _text(inner: Mapping[str, Any], key: str, where: str) -> str:
    found = inner.get(key) or ""
    if not isinstance(found, str):
        raise _broken(where, f"{key} that is not text")
    return found


def _words(inner: Mapping[str, Any], key: str, where: str) -> Words:
    found = inner.get(key) or []
    if isinstance(found, str):  # Docker took a text here before there were lists
        found = ["/bin/sh", "-c", found]
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise _broken(where, f"{key} that is not a list of strings")
    return tuple(found)


def _broken(where: str, found: str) -> ImageMismatch:
    return ImageMismatch("an image's metadata cannot be read", where=where, found=found)
