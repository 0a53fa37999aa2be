"""Where an image's Python imports a package from, found by reading the image and running nothing of it.

Follows CPython's ``getpath`` and ``site``: the first ``python3`` of ``PATH``, a virtual environment's
``pyvenv.cfg``, ``PYTHONHOME``, ``PYTHONPATH``, site-packages (or Debian's dist-packages), and ``.pth``
files in their order. Of the ``import`` lines in ``.pth`` files only those of setuptools' editable finders
are known, whose ``MAPPING`` is read as a literal; code that cannot be decided on paper is named.

An image can be started in several ways: by its entry point's own interpreter, with ``python3 -m`` where its
containers start, by a script. What is imported must be the same in each of them.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from builder.base.providers import EXTENSION, Provider, Read, cannot_read, providers_at
from builder.base.startup import entry_program, home_of
from builder.base.startup_code import StartupCode, customizations, is_known_finder, is_known_line, unread_rest
from builder.errors import ImageMismatch
from builder.oci.rootfs import Files, Found, RootFS
from builder.oci.settings import Settings
from builder.oci.tarwalk import Kind

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_INTERPRETERS = ("python3", "python")
_UPSTREAM = {"sglang": "python/sglang"}
# Where images of SGLang keep a tree of it, whether Python looks there or not.
_USUAL_TREES = ("/sgl-workspace/sglang/python",)
_USUAL_PACKAGES = ("/usr/local/lib", "/usr/lib", "/opt/*/lib", "/root/.local/lib")
_IN_WORKING_DIR = "in the working directory"
_METADATA = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py\d+\.\d+)?\.(dist|egg)-info\Z")
_NO_SUCH = "finds no package"


@dataclass(frozen=True)
class PackageCopy:
    """One copy of a package in the image.

    ``path`` is the package's real directory, from ``/``; ``upstream`` what it is called in the sources;
    ``reason`` how Python gets there; ``distribution`` and ``version`` as installed metadata says, where it
    says so.
    """

    package: str
    path: str
    upstream: str
    reason: str
    distribution: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Interpreter:
    """The Python that the image's ``PATH`` names; ``version`` is such as ``3.12``."""

    path: str
    version: str
    prefix: str
    base_prefix: str
    library: str
    system_site: bool

    @property
    def cache_tag(self) -> str:
        """What bytecode files are marked with, e.g. ``cpython-312`` (PEP 3147)."""
        return "cpython-" + self.version.replace(".", "")

    @property
    def is_virtual(self) -> bool:
        return self.prefix != self.base_prefix


@dataclass(frozen=True)
class Rival:
    """What is imported instead of the copy that counts, in one of the ways to start the image."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


@dataclass(frozen=True)
class Roots:
    """The copy that Python imports, the other ones, and how that was found.

    Args:
        root: the copy that counts.
        others: of the package, which are not imported.
        interpreter: the entry point's own Python, else the one that ``PATH`` names.
        search_path: where it looks, without what the working directory adds.
        watched: the directories it would look into if they were there, too.
        warnings: what a person should know.
        rivals: what some way to start the image imports instead.
        code: what runs before anything is imported, and is not known.
    """

    root: PackageCopy
    others: tuple[PackageCopy, ...]
    interpreter: Interpreter
    search_path: tuple[str, ...]
    warnings: tuple[str, ...]
    rivals: tuple[Rival, ...] = ()
    watched: tuple[str, ...] = ()
    code: tuple[StartupCode, ...] = ()

    @property
    def cache_tag(self) -> str:
        return self.interpreter.cache_tag


@dataclass
class _Search:
    """``sys.path`` while it grows, and what editable finders map."""

    entries: dict[str, str] = field(default_factory=dict)  # directory → why it is searched
    finders: list[tuple[Mapping[str, str], str]] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    watched: dict[str, None] = field(default_factory=dict)
    code: list[StartupCode] = field(default_factory=list)


@dataclass(frozen=True)
class _Way:
    """One way to start an image: an interpreter, its search path, and what comes before that."""

    how: str
    interpreter: Interpreter
    search: _Search
    first: str | None

    @property
    def entries(self) -> list[tuple[str, str]]:
        first = [] if self.first is None else [(self.first, self.how)]
        return [*first, *self.search.entries.items()]


def find_roots(
    rootfs: RootFS,
    config_env: Mapping[str, str],
    package: str = "sglang",
    *,
    working_dir: str = "/",
    user: str = "",
    command: Sequence[str] = (),
    read: Read = cannot_read,
) -> Roots:
    """Where ``import PACKAGE`` gets its files from in a container of the image.

    Args:
        rootfs: the image's files.
        config_env: the environment of its config.
        package: a top-level package, e.g. ``sglang``, ``transformers``, ``flashinfer``.
        working_dir: of its config; relative entries of ``PYTHONPATH`` start there.
        user: of its config.
        command: its entry point with its command.
        read: gives the bytes of a file, for what no index keeps: archives on the path, ``/etc/passwd``.

    Raises:
        ImageMismatch: no Python, or no such package; the error lists where it was looked for.
    """
    start = Settings(config_env, command=tuple(command), user=user, working_dir=working_dir)
    ways = _ways(rootfs, start, read)
    provided = [(way, list(_providers(rootfs, way, package, read))) for way in ways]
    main, found = provided[0]
    search = main.search
    imported = list(dict.fromkeys(one.package for one in found if one.package and one.reason != main.how))
    whys = {one.package: one.reason for one in reversed(found)}
    if not imported:
        raise _no_package(package, main, found)
    leftovers = dict(_leftovers(rootfs, package, working_dir))
    unreachable = [(path, why) for path, why in leftovers.items() if path not in imported]
    name = canonicalize_name(package)
    installed = list(distributions(rootfs, [*search.sites, *search.entries], (name, f"{name}-python")))
    copies = [(path, whys[path]) for path in imported]
    roots = [_root(package, path, why, installed) for path, why in [*copies, *unreachable]]
    chosen, others = roots[0], tuple(roots[1:])
    rivals = dict.fromkeys(rival for way, there in provided for rival in _rivals(chosen, way, there))
    warnings = [_warning(chosen, other) for other in others]
    warnings += [_lost(package, way) for way, there in provided if not there]
    code = dict.fromkeys(one for way in ways for one in [*way.search.code, *_customized(rootfs, way)])
    return Roots(
        chosen,
        others,
        main.interpreter,
        tuple(search.entries),
        tuple(dict.fromkeys(warnings)),
        tuple(rivals),
        tuple(dict.fromkeys(path for way in ways for path in [*way.search.entries, *way.search.watched])),
        tuple(code),
    )


def places_of(rootfs: RootFS, start: Settings, read: Read) -> tuple[list[str], list[str]]:
    """The directories that the image's Pythons look into, in each way to start it, and their cache tags.

    Args:
        rootfs, read: as for :func:`find_roots`.
        start: what containers are started with.

    Raises:
        ImageMismatch: no Python.
    """
    ways = _ways(rootfs, start, read)
    places = dict.fromkeys(path for way in ways for path in [*dict(way.entries), *way.search.watched])
    return list(places), list(dict.fromkeys(way.interpreter.cache_tag for way in ways))


def _ways(rootfs: RootFS, start: Settings, read: Read) -> list[_Way]:
    """The ways to start an image, the one that counts first.

    Raises:
        ImageMismatch: no Python.
    """
    program = entry_program(rootfs, start)
    named: list[tuple[str, str, Mapping[str, str], str | None]] = []
    if program is not None:
        named.append(("the entry point", program.interpreter, program.environment, program.first))
    try:
        path = _executable(rootfs, start.environment.get("PATH") or _DEFAULT_PATH)
    except ImageMismatch:
        if program is None:
            raise
    else:
        safe = bool(start.environment.get("PYTHONSAFEPATH"))
        named.append(("python3 with a script", path, start.environment, None))
        named.append((f"python3 -m in {start.start_directory}", path, start.environment,
                      None if safe else _plain(start.start_directory)))  # fmt: skip
    ways = []
    home = home_of(rootfs, start, read)
    for how, executable, environment, first in named:
        interpreter = _interpreter_at(rootfs, executable, environment)
        search = _search_path(rootfs, interpreter, {**environment, "HOME": home}, start.start_directory)
        ways.append(_Way(how, interpreter, search, first))
    return ways


def _providers(rootfs: RootFS, way: _Way, package: str, read: Read) -> Iterator[Provider]:
    """What ``import PACKAGE`` would take, in Python's order; the first one counts."""
    namespace: Provider | None = None
    for entry, why in way.entries:
        for provider in providers_at(rootfs, entry, package, why, read):
            if provider.is_namespace:
                namespace = namespace or provider
            else:
                yield provider
    mapped = [(mapping[package], why) for mapping, why in way.search.finders if package in mapping]
    found = [(path, why) for path, why in mapped if _package_at(rootfs, path) is not None]
    if namespace is not None and found:  # a directory on the path comes before every finder
        yield namespace
    for path, why in found:
        yield Provider(path, _package_at(rootfs, path), why)


def _rivals(chosen: PackageCopy, way: _Way, found: Sequence[Provider]) -> Iterator[Rival]:
    """What comes before the copy that counts, when the image is started in this way."""
    for provider in found:
        if provider.package == chosen.path and provider.loader is None:
            return
        path = provider.loader or provider.package or provider.path
        reason = provider.reason if provider.reason == way.how else f"{way.how}: {provider.reason}"
        yield Rival(path, reason)
        return


def _no_package(package: str, way: _Way, found: Sequence[Provider]) -> ImageMismatch:
    interpreter = way.interpreter
    where = [f"{entry}  ({why})" for entry, why in way.search.entries.items()]
    instead = [provider.loader or provider.path for provider in found]
    return ImageMismatch(
        f"the image's Python {_NO_SUCH} {package}",
        where=f"{interpreter.path} (Python {interpreter.version})",
        expected=f"a directory {package} with __init__.py in one of the directories below",
        found=", ".join(instead) or None,
        details="\n".join(where),
        hint="is it an image of SGLang? Otherwise name the directory in the spec: base.roots",
        facts={"searched": list(way.search.entries)} | ({"instead": instead} if instead else {}),
    )


def _lost(package: str, way: _Way) -> str:
    return f"{way.how} ({way.interpreter.path}) finds no {package} at all"


def _customized(rootfs: RootFS, way: _Way) -> list[StartupCode]:
    return customizations(rootfs, list(way.search.entries), dict(way.search.entries))


def find_interpreter(rootfs: RootFS, config_env: Mapping[str, str]) -> Interpreter:
    """The Python that a container starts as ``python3``, or else as ``python``.

    Raises:
        ImageMismatch: there is none, or its version or library cannot be told.
    """
    return _interpreter_at(rootfs, _executable(rootfs, config_env.get("PATH") or _DEFAULT_PATH), config_env)


def _interpreter_at(rootfs: RootFS, executable: str, config_env: Mapping[str, str]) -> Interpreter:
    settings, prefix = _virtual_environment(rootfs, executable)
    start = executable
    if prefix and "home" in settings:
        home = settings["home"].rstrip("/")
        names = [executable.rpartition("/")[2], *_INTERPRETERS]
        start = next((f"{home}/{n}" for n in names if _is_file(rootfs, f"{home}/{n}")), f"{home}/python3")
    real = "/" + (rootfs.real_path(start) or start.lstrip("/"))
    version = _version(real, settings) or _version_by_library(rootfs, real)
    homes = config_env.get("PYTHONHOME", "").split(":")[0]
    base = homes or _base_prefix(rootfs, real, version)
    library = _library(rootfs, base, version) if base and version else None
    if base is None or version is None or library is None:
        raise ImageMismatch(
            "the library of the image's Python cannot be found",
            where=executable,
            expected=f"lib/python{version or '3.x'}/os.py in a directory above the interpreter",
            found=f"interpreter {real}, PYTHONHOME {homes or 'not set'}",
        )
    system_site = settings.get("include-system-site-packages", "").lower() == "true"
    return Interpreter(executable, version, prefix or base, base, library, system_site)


def search_directories(
    rootfs: RootFS, interpreter: Interpreter, config_env: Mapping[str, str], working_dir: str
) -> list[str]:
    """The directories that the image's Python looks for packages in, the first ones first.

    Args:
        rootfs, config_env, working_dir: as for :func:`find_roots`.
        interpreter: the image's Python.
    """
    search = _search_path(rootfs, interpreter, config_env, working_dir)
    return list(dict.fromkeys([*search.entries, *search.sites]))


def bytecode_of(rootfs: Files, source: str, config_env: Mapping[str, str]) -> tuple[Found, ...]:
    """Every bytecode file that some Python may take for ``source``'s, whatever its tag and level.

    Args:
        rootfs: the image's files.
        source: path of a ``.py`` file in the image; it need not be there.
        config_env: the environment of the image's config (for ``PYTHONPYCACHEPREFIX``).
    """
    directory, _, name = source.rpartition("/")
    if not name.endswith(".py"):
        return ()
    stem = re.escape(name.removesuffix(".py"))
    pattern = re.compile(stem + r"\.[^.]+(\.opt-[^.]+)?\.pyc\Z")
    places = [f"{directory}/__pycache__"]
    if config_env.get("PYTHONPYCACHEPREFIX"):
        places.append(f"{config_env['PYTHONPYCACHEPREFIX']}/{directory}")
    paths = (f"{place}/{n}" for place in places for n in rootfs.listdir(place) if pattern.match(n))
    kinds = (Kind.FILE, Kind.SYMLINK)  # a link that the image's layers cannot follow leads nowhere: no file
    return tuple(
        found for path in paths if (found := rootfs.lookup(path)) is not None and found.kind in kinds
    )


def shadows_of(rootfs: Files, source: str) -> tuple[str, ...]:
    """What Python imports instead of the module ``source``: an extension module, or a package, beside it.

    The packages above count too: an extension module in the place of their ``__init__.py`` decides what their
    modules are.
    """
    directory, _, name = source.rpartition("/")
    stem = name.removesuffix(".py")
    if stem == name:
        return ()
    found = []
    if stem != "__init__":
        found += _extensions(rootfs, directory, stem)
        package = [*_extensions(rootfs, f"{directory}/{stem}", "__init__")]
        loaders = ("__init__.py", "__init__.pyc")
        package += [n for n in loaders if _is_file(rootfs, f"{directory}/{stem}/{n}")]
        found += [f"{stem}/{n}" for n in package]
    paths = [f"{directory}/{n}" for n in found]
    while directory and _is_file(rootfs, f"{directory}/__init__.py"):
        paths += [f"{directory}/{n}" for n in _extensions(rootfs, directory, "__init__")]
        directory = directory.rpartition("/")[0]
    return tuple(paths)


def _extensions(rootfs: Files, directory: str, stem: str) -> list[str]:
    """The extension modules of this name in a directory."""
    names = rootfs.listdir(directory)
    return [n for n in names if n.startswith(stem) and EXTENSION.fullmatch(n[len(stem) :])]


def _executable(rootfs: RootFS, search: str) -> str:
    directories = [entry for entry in search.split(":") if entry.startswith("/")]
    for name in _INTERPRETERS:
        for directory in directories:
            path = f"{directory.rstrip('/')}/{name}"
            found = rootfs.lookup(path)
            if found is not None and found.is_file and found.mode & 0o111:
                return path
    raise ImageMismatch(
        "the image has no Python",
        where=f"PATH {search}",
        expected=" or ".join(_INTERPRETERS),
        hint="name the directory of the package in the spec: base.roots",
        facts={"searched": directories},
    )


def _virtual_environment(rootfs: RootFS, executable: str) -> tuple[dict[str, str], str | None]:
    """``pyvenv.cfg`` beside the interpreter or one directory above, and the prefix it makes (PEP 405)."""
    binaries = executable.rpartition("/")[0]
    for directory in (binaries, binaries.rpartition("/")[0]):
        found = rootfs.lookup(f"{directory}/pyvenv.cfg")
        if found is not None and found.data is not None:
            lines = found.data.decode("utf-8", "surrogateescape").splitlines()
            pairs = (line.partition("=")[::2] for line in lines if "=" in line)
            return {key.strip().lower(): value.strip() for key, value in pairs}, binaries.rpartition("/")[
                0
            ] or "/"
    return {}, None


def _version(real: str, settings: Mapping[str, str]) -> str | None:
    by_name = re.search(r"python(3\.\d+)t?\Z", real)
    if by_name:
        return by_name[1]
    declared = re.match(r"3\.\d+", settings.get("version") or settings.get("version_info") or "")
    return declared[0] if declared else None


def _version_by_library(rootfs: RootFS, real: str) -> str | None:
    for directory in _above(real):
        versions = {
            match[1]
            for name in rootfs.listdir(f"{directory}/lib")
            if (match := re.fullmatch(r"python(3\.\d+)", name)) and _library(rootfs, directory, match[1])
        }
        if versions:
            return versions.pop() if len(versions) == 1 else None
    return None


def _base_prefix(rootfs: RootFS, real: str, version: str | None) -> str | None:
    return next((d or "/" for d in _above(real) if version and _library(rootfs, d, version)), None)


def _library(rootfs: RootFS, prefix: str, version: str) -> str | None:
    """The standard library below a prefix, by its landmark."""
    for lib in ("lib", "lib64"):
        path = f"{prefix.rstrip('/')}/{lib}/python{version}"
        if any(_is_file(rootfs, f"{path}/{landmark}") for landmark in ("os.py", "os.pyc")):
            return path
    return None


def _above(path: str) -> list[str]:
    """The directories above a file, the nearest first; the root is ``""``."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1)]


def _search_path(
    rootfs: RootFS, interpreter: Interpreter, config_env: Mapping[str, str], working_dir: str
) -> _Search:
    search = _Search()
    for entry in config_env.get("PYTHONPATH", "").split(":") if config_env.get("PYTHONPATH") else []:
        path = entry if entry.startswith("/") else f"{working_dir.rstrip('/')}/{entry}".rstrip("/")
        search.entries.setdefault(_plain(path), "PYTHONPATH")
    library = interpreter.library
    library_name, digits = library.split("/")[-2], interpreter.version.replace(".", "")
    library_name, digits = library.split("/")[-2], interpreter.version.replace(".", "")
    archive = f"{interpreter.base_prefix.rstrip('/')}/{library_name}/python{digits}.zip"
    if _is_file(rootfs, archive):
        search.entries.setdefault(archive, "standard library")
    search.watched.setdefault(archive)
    search.entries.setdefault(library, "standard library")
    search.entries.setdefault(f"{library}/lib-dynload", "standard library")
    for directory in _site_directories(rootfs, interpreter, config_env):
        _add_site(rootfs, search, directory)
    return search


def _site_directories(
    rootfs: RootFS, interpreter: Interpreter, config_env: Mapping[str, str]
) -> Iterator[str]:
    """The directories that ``site`` adds, in its order, whether or not they are there."""
    version = interpreter.version
    if interpreter.is_virtual:
        yield from _packages_below(rootfs, interpreter, interpreter.prefix)
    if not interpreter.is_virtual or interpreter.system_site:
        if not config_env.get("PYTHONNOUSERSITE"):
            home = config_env.get("PYTHONUSERBASE") or f"{config_env.get('HOME') or '/root'}/.local"
            yield f"{home}/lib/python{version}/site-packages"
        yield from _packages_below(rootfs, interpreter, interpreter.base_prefix)


def _packages_below(rootfs: RootFS, interpreter: Interpreter, prefix: str) -> Iterator[str]:
    prefix, version = prefix.rstrip("/"), f"python{interpreter.version}"
    if not _is_debian(rootfs, interpreter):
        for lib in dict.fromkeys((interpreter.library.rpartition("/")[0].rpartition("/")[2], "lib")):
            yield f"{prefix}/{lib}/{version}/site-packages"
        return
    if interpreter.is_virtual:
        yield f"{prefix}/lib/{version}/site-packages"
    yield f"{prefix}/local/lib/{version}/dist-packages"
    yield f"{prefix}/lib/python3/dist-packages"
    yield f"{prefix}/lib/{version}/dist-packages"


def _is_debian(rootfs: RootFS, interpreter: Interpreter) -> bool:
    """Whether the interpreter is Debian's (or Ubuntu's), which looks into dist-packages."""
    return interpreter.library.startswith("/usr/lib/") and any(
        rootfs.lookup(directory) is not None
        for directory in (
            "/usr/lib/python3/dist-packages",
            f"/usr/local/lib/python{interpreter.version}/dist-packages",
        )
    )


def _add_site(rootfs: RootFS, search: _Search, directory: str) -> None:
    """``site.addsitedir``: the directory, then what its ``.pth`` files name, by their names' order."""
    search.watched.setdefault(directory)
    found = rootfs.lookup(directory)
    if found is None or not found.is_directory or directory in search.sites:
        return
    search.sites.append(directory)
    search.entries.setdefault(directory, "site directory")
    for name in rootfs.listdir(directory):
        if name.endswith(".pth") and not name.startswith("."):
            _add_pth(rootfs, search, directory, name)


def _add_pth(rootfs: RootFS, search: _Search, directory: str, name: str) -> None:
    found = rootfs.lookup(f"{directory}/{name}")
    if found is None or not found.is_file:
        return
    if code := unread_rest(found):
        search.code.append(code)
    for line in (found.data or b"").decode("utf-8-sig", "surrogateescape").split("\n"):
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith(("import ", "import\t")):
            if not _add_finder(rootfs, search, directory, name, line) and not is_known_line(line):
                search.code.append(StartupCode(f"/{found.path}", found.layer, "an import line"))
            continue
        path = _plain(line.rstrip() if line.startswith("/") else f"{directory}/{line.rstrip()}")
        if rootfs.lookup(path) is not None:
            search.entries.setdefault(path, f"{directory}/{name}")


def _add_finder(rootfs: RootFS, search: _Search, directory: str, name: str, line: str) -> bool:
    """An editable finder of setuptools: ``import __editable___NAME_finder; ….install()``.

    Returns:
        Whether the line is such a one and nothing else.
    """
    module = re.match(r"import\s+(__editable__\w+_finder)\b", line)
    found = rootfs.lookup(f"{directory}/{module[1]}.py") if module else None
    if module is None or found is None or found.data is None:
        return False
    search.finders.append((_mapping(found.data), f"editable finder of {directory}/{name}"))
    own = rf"import\s+{module[1]};?\s*({module[1]}\.install\(\);?)?\s*"
    return re.fullmatch(own, line) is not None and is_known_finder(found.data)


def _mapping(source: bytes) -> dict[str, str]:
    """The literal that a finder assigns to ``MAPPING``; empty when there is none."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        if any(isinstance(t, ast.Name) and t.id == "MAPPING" for t in targets) and isinstance(
            value, ast.Dict
        ):
            pairs = zip(value.keys, value.values, strict=True)
            return {
                key.value: path.value
                for key, path in pairs
                if isinstance(key, ast.Constant)
                and isinstance(key.value, str)
                and isinstance(path, ast.Constant)
                and isinstance(path.value, str)
            }
    return {}


def _package_at(rootfs: RootFS, path: str) -> str | None:
    """The real directory of a regular package; a directory without ``__init__.py`` is none (PEP 420)."""
    if not _is_file(rootfs, f"{path}/__init__.py"):
        return None
    return f"/{rootfs.real_path(path)}"


def _leftovers(rootfs: RootFS, package: str, working_dir: str) -> Iterator[tuple[str, str]]:
    """Copies at the usual places that Python does not look at, and one where containers start."""
    for directory in [*_USUAL_TREES, *_usual_sites(rootfs)]:
        real = _package_at(rootfs, f"{directory}/{package}")
        if real is not None:
            yield real, "not on the path of the image's Python"
    real = _package_at(rootfs, f"{working_dir.rstrip('/')}/{package}")
    if real is not None:
        yield real, _IN_WORKING_DIR


def _warning(chosen: PackageCopy, other: PackageCopy) -> str:
    """What a person should know of a second copy."""
    twice = f"{chosen.package} is in the image twice: {chosen.path} is imported ({chosen.reason})"
    if other.reason == _IN_WORKING_DIR:
        return f"{twice}, but python3 -m prefers {other.path} where containers start"
    return f"{twice}, {other.path} is not"


def _usual_sites(rootfs: RootFS) -> Iterator[str]:
    for pattern in _USUAL_PACKAGES:
        above, star, below = pattern.partition("*")
        libraries = [f"{above}{n}{below}" for n in rootfs.listdir(above)] if star else [pattern]
        for library in libraries:
            for name in rootfs.listdir(library):
                if re.fullmatch(r"python3(\.\d+)?", name):
                    yield f"{library}/{name}/site-packages"
                    yield f"{library}/{name}/dist-packages"


@dataclass(frozen=True)
class Distribution:
    """An installed distribution, by its metadata (PEP 376).

    Args:
        normal_name: as PEP 503 compares it.
        name, version: as the metadata has them, else as its directory is named.
        directory: that its metadata lies in.
        editable: the tree that it was installed from, for an editable install.
    """

    normal_name: str
    name: str
    version: str
    directory: str
    editable: str | None


def distributions(
    rootfs: RootFS, directories: Iterable[str], names: Collection[str]
) -> Iterator[Distribution]:
    """The installed distributions of some names, directory by directory.

    Args:
        rootfs: the image's files.
        directories: where to look, in the order of Python's path: of two of a name, the first counts.
        names: normalised (PEP 503).
    """
    for directory in dict.fromkeys(directories):
        for entry in rootfs.listdir(directory):
            match = _METADATA.match(entry)
            normal_name = canonicalize_name(match["name"]) if match else ""
            if match is None or normal_name not in names:
                continue
            above = f"{directory}/{entry}"
            metadata = rootfs.lookup(f"{above}/METADATA") or rootfs.lookup(f"{above}/PKG-INFO")
            headers = BytesHeaderParser().parsebytes((metadata and metadata.data) or b"")
            yield Distribution(
                normal_name,
                str(headers.get("Name") or match["name"]),
                str(headers.get("Version") or match["version"]).strip(),
                directory,
                _editable(rootfs, f"{above}/direct_url.json"),
            )


def _editable(rootfs: RootFS, path: str) -> str | None:
    """The directory that PEP 610's ``direct_url.json`` says an editable install is of."""
    found = rootfs.lookup(path)
    try:
        value = json.loads((found and found.data) or b"null")
    except (ValueError, RecursionError):
        return None
    match value:
        case {"url": str(url), "dir_info": {"editable": True}} if url.startswith("file:"):
            return unquote(urlsplit(url).path).rstrip("/")
    return None


def _root(package: str, path: str, why: str, installed: Iterable[Distribution]) -> PackageCopy:
    there = list(installed)
    # setuptools names the .pth of an editable install after its distribution.
    editable = (d for d in there if why.startswith(f"{d.directory}/__editable__."))
    own = next((d for d in there if _holds(d, path)), None) or next(editable, None)
    return PackageCopy(
        package=package,
        path=path,
        upstream=_UPSTREAM.get(package, package),
        reason=why,
        distribution=own.name if own else None,
        version=own.version if own else None,
    )


def _holds(distribution: Distribution, path: str) -> bool:
    """Whether a package's directory is of this distribution."""
    if distribution.editable is None:
        return path.rpartition("/")[0] == distribution.directory
    return path.startswith(f"{distribution.editable}/")


def _plain(path: str) -> str:
    """``path`` from ``/``, as ``os.path.abspath`` writes it."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def _is_file(rootfs: Files, path: str) -> bool:
    found = rootfs.lookup(path)
    return found is not None and found.is_file
