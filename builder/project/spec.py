"""The overlay spec ``overlays/NAME.yaml``: read, checked, and made into a frozen value."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from builder.errors import InvalidInput

MAX_SPEC_BYTES = 256 << 10
MAX_SPEC_DEPTH = 8


def _one_line(value: str) -> str:
    if any(ord(char) < 32 or ord(char) in (0x7F, 0x85, 0x2028, 0x2029) for char in value):
        raise ValueError("must be one line without control characters")
    return value


def _absolute_or_auto(value: str) -> str:
    parts = value.split("/")
    if value != "auto" and (not value.startswith("/") or any(part in ("", ".", "..") for part in parts[1:])):
        raise ValueError("must be 'auto' or an absolute, normalised path in the image")
    return value


def _versions(value: str) -> str:
    from builder.project.requirements import check_specifier

    return check_specifier(value)


def _by_name(value: object) -> object:
    """A list of requirements, such as ``[tilelang>=0.1.10, cuda>=13.0]``, as versions by name."""
    if not isinstance(value, (list, tuple)):
        return value
    from builder.project.requirements import parse_requirements

    found: dict[str, str] = {}
    for text in value:
        try:
            requirements = parse_requirements(str(text), where="requires")
        except InvalidInput as error:
            raise ValueError(f"{error.what}: {error.found} (expected {error.expected})") from error
        for one in requirements:
            found[one.name] = ",".join(part for part in (found.get(one.name), one.specifier) if part)
    return found


def _below_root(value: str) -> str:
    if any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError("must be a normalised path below the repository's root")
    return value


def _git_source(value: str) -> str:
    check_git_source(value)
    scheme, found, rest = value.partition("://")
    user, at, _ = rest.partition("/")[0].rpartition("@")
    if found and at and (":" in user or scheme in ("https", "http")):
        raise ValueError("must hold no credentials: it is written to the lock and into every image")
    return value


def check_git_source(value: str) -> None:
    """Raise :class:`ValueError` unless git may fetch from ``value``, a path or a URL."""
    if value.startswith("-") or "::" in value:
        raise ValueError("must be a URL or a path; options and helper transports (ext::) are refused")
    scheme, found, _ = value.partition("://")
    if found and scheme not in ("https", "http", "ssh", "git", "file"):
        raise ValueError(f"{scheme}:// is not a transport that is allowed (https, http, ssh, git, file)")


Line = Annotated[str, AfterValidator(_one_line), StringConstraints(max_length=4096)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(?:[._-][a-z0-9]+)*$", max_length=80)]
Requirement = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9._+!-]+$")]
SourcePath = Annotated[Line, AfterValidator(_below_root)]
ImagePath = Annotated[Line, AfterValidator(_absolute_or_auto)]
Option = Annotated[str, StringConstraints(pattern=r"^--[a-z0-9][a-z0-9-]*$")]
Release = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=80)]
Distribution = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
Versions = Annotated[Line, AfterValidator(_versions)]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Capability = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9]$")]
PlatformName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+/[a-z0-9_]+(?:/[a-z0-9]+)?$")]
Pattern = Annotated[str, AfterValidator(_one_line), StringConstraints(min_length=1, max_length=400)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]


# What is told to people in the place of a pattern, or of pydantic's own words for a kind of value.
_IN_WORDS: dict[Any, str] = {
    Name: "lower-case letters and digits, with . _ - between them",
    Requirement: "NAME==VERSION",
    Option: "an option, such as --tp-size",
    Release: "a release, such as v0.5.20",
    Distribution: "a distribution's name, such as tilelang; or cuda",
    Commit: "40 hex digits in lower case",
    Digest: "sha256: and 64 hex digits in lower case",
    Capability: 'a compute capability, such as "12.1"',
    PlatformName: "OS/ARCH, such as linux/arm64",
    Variable: "a variable's name: letters, digits and _",
}
_BY_PATTERN = {kind.__metadata__[0].pattern: words for kind, words in _IN_WORDS.items()}
_BY_TYPE = {
    "missing": "key is missing",
    "tuple_type": "a list: [ONE, TWO]",
    "dict_type": "keys with values: KEY: VALUE",
    "model_type": "keys with values: KEY: VALUE",
    "string_type": "a text",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Wheel(_Model):
    """A release wheel: the file of ``requirement`` whose SHA-256 is ``sha256``."""

    requirement: Requirement
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class UpstreamSpec(_Model):
    """The pinned source. ``commit`` may be left out where nobody knows it; then the wheel is the pin."""

    repository: Annotated[Line, AfterValidator(_git_source)] = "https://github.com/sgl-project/sglang"
    release: Release
    commit: Commit | None = None
    wheel: Wheel | None = None
    packages: dict[Name, Wheel] = Field(
        default_factory=dict, description="Other packages with patches, by import name; at site-packages/NAME"
    )


class BaseSpec(_Model):
    """The base image, and where the upstream's files are in it."""

    image: Line
    index: Digest | None = None
    platforms: dict[PlatformName, Digest | None] = Field(default_factory=dict)
    roots: dict[SourcePath, ImagePath] = Field(default_factory=lambda: {"python/sglang": "auto"})


class PatchesSpec(_Model):
    """Which patches go in, and which of their files the image does not have."""

    series: Release
    only: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = Field(default=(), alias="except")
    drop: tuple[Pattern, ...] = ("test/*", "tests/*", "docs/*", ".github/*", "benchmark/*", "examples/*")


class Spec(_Model):
    """One overlay, as its spec says."""

    name: Name
    version: Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9._-]*$", max_length=40)]
    summary: Annotated[Line, StringConstraints(min_length=1, max_length=300)]
    date: datetime.date = Field(
        ge=datetime.date(1970, 1, 1),
        description="The date of this version; the time of everything in the image",
    )
    upstream: UpstreamSpec
    base: BaseSpec
    patches: PatchesSpec
    environment: dict[Variable, Line] = Field(default_factory=dict)
    arguments: dict[Option, Line | Literal[True]] = Field(
        default_factory=dict, description="Recommended for serving; recorded as a label, never applied"
    )
    hardware: tuple[Annotated[Capability, BeforeValidator(str)], ...] = ()
    requires: Annotated[dict[Distribution, Versions], BeforeValidator(_by_name)] = Field(
        default_factory=dict,
        description="What the base must have installed: versions by distribution, and by `cuda`",
    )


def read_spec(path: Path) -> Spec:
    """Read a spec.

    Args:
        path: ``overlays/NAME.yaml``.

    Raises:
        InvalidInput: naming the file, the line and the key, what was expected, and the nearest known key.
    """
    data = path.read_bytes()
    if len(data) > MAX_SPEC_BYTES:
        raise InvalidInput("spec is too large", where=str(path), expected=f"at most {MAX_SPEC_BYTES} bytes")
    node = _compose(path, data)
    value = _plain(node, path)
    try:
        spec = Spec.model_validate(value)
    except ValidationError as error:
        raise _spec_error(path, node, error) from error
    if spec.name != path.stem:
        raise InvalidInput(
            "spec's name is not its file's",
            where=_at(path, node, ("name",)),
            expected=path.stem,
            found=spec.name,
        )
    if spec.upstream.commit is None and spec.upstream.wheel is None:
        raise InvalidInput(
            "spec pins no source",
            where=_at(path, node, ("upstream",)),
            expected="upstream.commit (40 hex digits), upstream.wheel, or both",
        )
    wheel, release = spec.upstream.wheel, spec.upstream.release
    if wheel is not None and re.fullmatch(r"v\d+(\.\d+)+", release) and _version(wheel) != release[1:]:
        raise InvalidInput(
            "spec's wheel is of another release",
            where=_at(path, node, ("upstream", "wheel")),
            expected=f"sglang=={release[1:]}",
            found=wheel.requirement,
        )
    return spec


def _version(wheel: Wheel) -> str:
    return wheel.requirement.partition("==")[2]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a spec, for editors."""
    schema = Spec.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "overlay spec"} | schema


def _compose(path: Path, data: bytes) -> yaml.Node:
    try:
        _check_shape(path, data)
        node = yaml.compose(data, Loader=_loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidInput(
            "spec is not YAML", where=f"{path}{line}", found=str(getattr(error, "problem", error))
        ) from error
    if not isinstance(node, yaml.MappingNode):
        raise InvalidInput(
            "spec is not a mapping", where=str(path), expected="keys such as name, upstream, base"
        )
    return node


def _check_shape(path: Path, data: bytes) -> None:
    """Refuse what grows when it is read, or is deeper than a spec: seen in the events, before any is kept."""
    depth = 0
    for event in yaml.parse(data, Loader=_loader()):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInput(
                "spec refers to another part of itself",
                where=_line(path, event),
                expected="values without anchors and aliases",
            )
        if depth > MAX_SPEC_DEPTH:
            raise InvalidInput(
                "spec is nested too deeply",
                where=_line(path, event),
                expected=f"at most {MAX_SPEC_DEPTH} levels",
            )


def _line(path: Path, part: yaml.Node | yaml.Event) -> str:
    return f"{path}, line {part.start_mark.line + 1}" if part.start_mark else str(path)


def _loader() -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _plain(node: yaml.Node, path: Path) -> Any:
    """The node's value; keys that stand twice are refused."""
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidInput("key is not a word", where=_line(path, key))
            if key.value in result:
                raise InvalidInput("key stands twice", where=_line(path, key), found=key.value)
            result[key.value] = _plain(value, path)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, path) for item in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    if node.tag == "tag:yaml.org,2002:bool" and node.value.lower() in ("true", "false"):
        return node.value.lower() == "true"
    return str(node.value)  # numbers and dates stay as written: 12.10 is not 12.1


def _spec_error(path: Path, node: yaml.Node, error: ValidationError) -> InvalidInput:
    # A misspelt key is also a missing one: the misspelling is the thing to say.
    problems = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    first = problems[0]
    location = _key_of(first["loc"])
    key = ".".join(map(str, location))
    hint = None
    if first["type"] == "extra_forbidden":
        near = get_close_matches(str(location[-1]), list(_known_keys(location[:-1])), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(_known_keys(location[:-1]))}"
    what = {"extra_forbidden": "unknown key in spec", "missing": "key is missing in spec"}.get(first["type"])
    found = first.get("input")
    return InvalidInput(
        what or "value in spec is not valid",
        where=f"{_at(path, node, location)}: {key}",
        expected=None if what else _in_words(first),
        found=None if what else without_credentials(repr(found)[:200]),
        hint=hint,
        details="\n".join(
            dict.fromkeys(f"{'.'.join(map(str, _key_of(e['loc'])))}: {_in_words(e)}" for e in problems[1:])
        )
        or None,
    )


def _in_words(problem: Mapping[str, Any]) -> str:
    """What a value should have been, for people who know neither patterns nor Python."""
    pattern = problem.get("ctx", {}).get("pattern")
    words = _BY_PATTERN.get(pattern) or _BY_TYPE.get(problem["type"])
    return words or str(problem["msg"]).removeprefix("Value error, ")


def _key_of(location: Sequence[int | str]) -> tuple[int | str, ...]:
    """The keys that lead to a value, without what pydantic calls the kinds that it tried."""
    kinds = re.compile(r"\[key\]|str|literal\[.*|function-.*", re.DOTALL)
    return tuple(part for part in location if not kinds.fullmatch(str(part)))


def without_credentials(text: str) -> str:
    """``text`` with the credentials of its URLs left out."""
    return re.sub(r"://[^/\s]+@", "://***@", text)


def _known_keys(location: tuple[int | str, ...]) -> Iterator[str]:
    model: Any = Spec
    for part in location:
        field = model.model_fields.get(str(part)) if model else None
        model = next(_models(field.annotation), None) if field else None
    if model:
        yield from (field.alias or name for name, field in model.model_fields.items())


def _models(annotation: Any) -> Iterator[Any]:
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    yield from (c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))


def _at(path: Path, node: yaml.Node, location: tuple[int | str, ...]) -> str:
    """``path, line N`` of the deepest node of ``location`` that there is."""
    line = node.start_mark.line
    for part in location:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(part)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
    return f"{path}, line {line + 1}"
