"""What a rendered Dockerfile declares of an image's containers, over what its base says.

The embedded engine knows ENV and LABEL alone; a Docker Engine follows the rest. What RUN does, no paper
tells: what a Docker Engine baked is verified.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from builder.build.dockerfile import instructions
from builder.oci.settings import Settings, Words

_SHELL = ("/bin/sh", "-c")
_VARIABLE = re.compile(r"\\(.)|\$(?:(\w+)|\{(\w+)(?:(:[-+])([^{}]*))?\})")
_WORD = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+""")
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}  # nanoseconds


def declare(dockerfile: str, base: Settings) -> Settings:
    """The settings of the image that a Dockerfile makes.

    Args:
        dockerfile: rendered.
        base: of the image that its last stage is built from.
    """
    settings, arguments = base, dict[str, str]()
    for _, line in instructions(dockerfile):
        word, _, rest = line.partition(" ")
        word, rest = word.upper(), rest.strip()
        known = {**arguments, **settings.environment}
        if word == "FROM":
            settings, arguments = base, {}
        elif word == "ARG" and "=" in rest:
            name, _, value = rest.partition("=")
            arguments[name] = _expanded(value, known)
        elif word in ("ENTRYPOINT", "CMD"):
            settings = _started(word, rest, settings, base)
        elif word in ("ENV", "LABEL", "WORKDIR", "USER"):
            settings = _placed(word, rest, settings, known)
        else:
            settings = _kept(word, rest, settings, known)
    return settings


def _started(word: str, rest: str, settings: Settings, base: Settings) -> Settings:
    if word == "CMD":
        return replace(settings, command=_command(rest))
    # Whoever sets the entry point takes the base's command away.
    command = settings.command if settings.command != base.command else ()
    return replace(settings, entrypoint=_command(rest), command=command)


def _placed(word: str, rest: str, settings: Settings, known: Mapping[str, str]) -> Settings:
    if word == "ENV":
        return settings.with_environment(dict(_pairs(rest, known)))
    if word == "LABEL":
        return replace(settings, labels={**settings.labels, **dict(_pairs(rest, known))})
    if word == "USER":
        return replace(settings, user=_expanded(rest, known))
    where = posixpath.join(settings.start_directory, _expanded(rest, known))
    return replace(settings, working_dir=posixpath.normpath(where))


def _kept(word: str, rest: str, settings: Settings, known: Mapping[str, str]) -> Settings:
    if word == "STOPSIGNAL":
        return replace(settings, stop_signal=_expanded(rest, known))
    if word == "VOLUME":
        more = _array(rest) or tuple(_expanded(one, known) for one in rest.split())
        return replace(settings, volumes=tuple(sorted({*settings.volumes, *more})))
    if word == "ONBUILD":
        return replace(settings, on_build=(*settings.on_build, rest))
    if word == "HEALTHCHECK":
        return replace(settings, healthcheck=_healthcheck(rest))
    return settings


def _array(text: str) -> Words | None:
    try:
        found = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        return None
    return tuple(found)


def _command(text: str) -> Words:
    found = _array(text)
    return (*_SHELL, text) if found is None else found


def _pairs(text: str, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """``name=value …``, or the old form ``name value``."""
    words = _WORD.findall(text)
    if not words or "=" not in words[0]:
        name, _, value = text.partition(" ")
        yield name, _expanded(value.strip(), known)
        return
    for word in words:
        name, _, value = word.partition("=")
        yield name, _expanded(value, known)


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """A word as Docker reads it: quotes taken off, variables filled in."""
    parts = []
    for piece in re.findall(r"""'[^']*'|"(?:[^"\\]|\\.)*"|(?:[^'"\\]|\\.)+|["'\\]""", text):
        if piece.startswith("'") and len(piece) > 1:
            parts.append(piece[1:-1])
            continue
        plain = piece[1:-1] if piece.startswith('"') and len(piece) > 1 else piece
        parts.append(_VARIABLE.sub(lambda match: _value(match, known), plain))
    return "".join(parts)


def _value(match: re.Match[str], known: Mapping[str, str]) -> str:
    escaped, plain, braced, operator, other = match.groups()
    if escaped is not None:
        return str(escaped)
    value = known.get(plain or braced, "")
    if operator == ":-":
        return value or str(other)
    if operator == ":+":
        return str(other) if value else ""
    return value


def _healthcheck(text: str) -> str:
    """As an engine keeps it: the test, and times in nanoseconds."""
    said: dict[str, object] = {}
    names = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod"}
    names |= {"start-interval": "StartInterval"}
    while match := re.match(r"--([a-z-]+)=(\S+)\s+", text):
        if match[1] == "retries":
            said["Retries"] = int(match[2]) if match[2].isdigit() else match[2]
        elif match[1] in names:
            said[names[match[1]]] = _nanoseconds(match[2])
        text = text[match.end() :]
    word, _, rest = text.partition(" ")
    array = _array(rest.strip())
    if word.upper() == "NONE":
        said["Test"] = ["NONE"]
    elif array is not None:
        said["Test"] = ["CMD", *array]
    else:
        said["Test"] = ["CMD-SHELL", rest.strip()]
    return json.dumps({key: value for key, value in said.items() if value}, sort_keys=True)


def _nanoseconds(text: str) -> int:
    parts = re.findall(r"([0-9.]+)(ns|us|ms|s|m|h)", text)
    return int(sum(float(number) * _UNITS[unit] for number, unit in parts))
