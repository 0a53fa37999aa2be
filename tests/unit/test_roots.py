"""An image's Python and where it imports from are found as Python itself would find them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from builder.base.python_path import bytecode_of, find_interpreter, find_roots, shadows_of
from builder.errors import ImageMismatch
from builder.oci.layer_index import index_layer
from builder.oci.model import OCI_LAYER, Descriptor, sha256_digest
from builder.oci.rootfs import RootFS

PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
UBUNTU = {
    "usr/bin/python3.12": "ELF",
    "usr/bin/python3": "-> python3.12",
    "bin": "-> usr/bin",
    "usr/lib/python3.12/os.py": "",
    "usr/lib/python3/dist-packages/": "",
}
DIST = "usr/local/lib/python3.12/dist-packages"
TREE = "sgl-workspace/sglang/python"
EDITABLE = {
    f"{TREE}/sglang/__init__.py": "",
    f"{DIST}/__editable__.sglang-0.5.20.pth": f"/{TREE}\n",
    f"{DIST}/sglang-0.5.20.dist-info/METADATA": "Name: sglang\nVersion: 0.5.20\n\nText: x\n",
    f"{DIST}/sglang-0.5.20.dist-info/direct_url.json": json.dumps(
        {"dir_info": {"editable": True}, "url": f"file:///{TREE}"}
    ),
}
VENV = {
    "opt/sglang/pyvenv.cfg": "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n",
    "opt/sglang/bin/python3": "-> /usr/bin/python3.12",
}
VENV_PATH = {"PATH": "/opt/sglang/bin:/usr/bin", "VIRTUAL_ENV": "/opt/sglang"}
SITE = "opt/sglang/lib/python3.12/site-packages"


def image(tmp_path: Path, files: dict[str, str]) -> RootFS:
    """An image of one layer. A content ``-> TARGET`` makes a symbolic link, a path ``DIR/`` a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            if text.startswith("-> "):
                info.type, info.linkname = tarfile.SYMTYPE, text[3:]
            elif path.endswith("/"):
                info.type = tarfile.DIRTYPE
            info.size = len(text.encode()) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(text.encode()))
    tar = out.getvalue()
    digest = sha256_digest(tar)
    descriptor = Descriptor(OCI_LAYER, digest, len(tar))
    return RootFS([index_layer(iter([tar]), descriptor, cache_dir=tmp_path, diff_id=digest)])


def test_editable_tree_is_found_through_its_pth(tmp_path: Path) -> None:
    roots = find_roots(image(tmp_path, {**UBUNTU, **EDITABLE}), PATH)
    assert roots.root.path == f"/{TREE}/sglang"
    assert roots.root.upstream == "python/sglang"
    assert (roots.root.distribution, roots.root.version) == ("sglang", "0.5.20")
    assert (roots.interpreter.path, roots.interpreter.version) == ("/usr/bin/python3", "3.12")
    assert roots.cache_tag == "cpython-312"
    assert roots.others == roots.warnings == ()


def test_wheel_in_dist_packages_is_found(tmp_path: Path) -> None:
    files = {
        f"{DIST}/sglang/__init__.py": "",
        f"{DIST}/sglang-0.5.19.post1.dist-info/METADATA": "Name: SGLang\nVersion: 0.5.19.post1\n",
    }
    roots = find_roots(image(tmp_path, {**UBUNTU, **files}), PATH)
    assert (roots.root.path, roots.root.version) == (f"/{DIST}/sglang", "0.5.19.post1")


def test_copy_that_python_does_not_import_is_named_in_a_warning(tmp_path: Path) -> None:
    # The site directory itself comes before what its .pth files name.
    files = {**UBUNTU, **EDITABLE, f"{DIST}/sglang/__init__.py": ""}
    roots = find_roots(image(tmp_path, files), PATH)
    assert roots.root.path == f"/{DIST}/sglang"
    assert [other.path for other in roots.others] == [f"/{TREE}/sglang"]
    assert roots.root.version is None  # the metadata is the editable tree's
    assert roots.others[0].version == "0.5.20"
    assert roots.warnings == (
        f"sglang is in the image twice: /{DIST}/sglang is imported (site directory), /{TREE}/sglang is not",
    )


def test_tree_that_nothing_points_to_is_named_in_a_warning(tmp_path: Path) -> None:
    files = {f"{DIST}/sglang/__init__.py": "", f"{TREE}/sglang/__init__.py": ""}
    roots = find_roots(image(tmp_path, {**UBUNTU, **files}), PATH)
    assert [(o.path, o.reason) for o in roots.others] == [
        (f"/{TREE}/sglang", "not on the path of the image's Python")
    ]


def test_copy_in_the_working_directory_is_what_python_m_imports(tmp_path: Path) -> None:
    files = {f"{DIST}/sglang/__init__.py": "", "srv/sglang/__init__.py": "", "home": f"-> /{DIST}"}
    root = image(tmp_path, {**UBUNTU, **files})
    (rival,) = find_roots(root, PATH, working_dir="/srv").rivals
    assert str(rival) == "/srv/sglang (python3 -m in /srv)"
    assert find_roots(root, PATH, working_dir="/home").rivals == ()
    assert find_roots(root, {**PATH, "PYTHONSAFEPATH": "1"}, working_dir="/srv").rivals == ()


LOADERS = [
    "sglang.py",
    "sglang.pyc",
    "sglang.so",
    "sglang.abi3.so",
    "sglang.cpython-312-x86_64-linux-gnu.so",
    "sglang/__init__.pyc",
    "sglang/__init__.cpython-312-x86_64-linux-gnu.so",
    "sglang/__init__.so",
]


@pytest.mark.parametrize("where", ["usr/lib/python3.12", "usr/lib/python3.12/lib-dynload", "srv", "opt/path"])
@pytest.mark.parametrize("loader", LOADERS)
def test_every_loader_that_comes_before_the_copy_is_named(tmp_path: Path, where: str, loader: str) -> None:
    root = image(tmp_path, {**UBUNTU, **EDITABLE, f"{where}/{loader}": ""})
    roots = find_roots(root, {**PATH, "PYTHONPATH": "/opt/path"}, working_dir="/srv")
    assert roots.root.path == f"/{TREE}/sglang"
    assert {rival.path for rival in roots.rivals} == {f"/{where}/{loader}"}


@pytest.mark.parametrize("loader", ["__init__.pyc", "srv.py"])
def test_what_comes_after_the_source_beside_it_is_none(tmp_path: Path, loader: str) -> None:
    root = image(tmp_path, {**UBUNTU, **EDITABLE, f"{TREE}/sglang/{loader}": "", f"{TREE}/sglang.py": ""})
    assert find_roots(root, PATH).rivals == ()


def test_an_extension_module_in_the_place_of_the_packages_own_source_is_named(tmp_path: Path) -> None:
    root = image(tmp_path, {**UBUNTU, **EDITABLE, f"{TREE}/sglang/__init__.so": ""})
    assert {rival.path for rival in find_roots(root, PATH).rivals} == {f"/{TREE}/sglang/__init__.so"}
    assert shadows_of(root, f"{TREE}/sglang/x.py") == (f"{TREE}/sglang/__init__.so",)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("/opt/sglang/bin/python3", "-m", "sglang.launch_server"), SITE),
        (("/opt/sglang/bin/sglang", "serve"), SITE),
        (("tini", "-s", "--", "/opt/sglang/bin/python3"), SITE),
        (("/usr/bin/env", "PATH=/opt/sglang/bin:/usr/bin", "python3", "-m", "x"), SITE),
        (("python3", "-m", "x"), DIST),
        (("/bin/sh", "-c", "python3 -m x"), DIST),
        ((), DIST),
    ],
)
def test_the_entry_points_own_python_decides(tmp_path: Path, command: tuple[str, ...], expected: str) -> None:
    files = {**UBUNTU, **VENV, f"{SITE}/sglang/__init__.py": "", "opt/sglang/bin/sglang": "#!python"}
    files |= {"usr/bin/tini": "ELF", "usr/bin/env": "ELF", "usr/bin/sh": "ELF", f"{DIST}/x.py": ""}
    root = image(tmp_path, {**files, f"{DIST}/sglang/__init__.py": ""})
    roots = find_roots(root, PATH, command=command)
    assert roots.root.path == f"/{expected}/sglang"
    # python3 of PATH is another one, and imports another copy.
    assert bool(roots.rivals) == (expected == SITE)


def test_a_script_has_its_own_directory_first(tmp_path: Path) -> None:
    root = image(tmp_path, {**UBUNTU, **EDITABLE, "srv/app/main.py": "", "srv/app/sglang/__init__.py": ""})
    for command in [("python3", "/srv/app/main.py"), ("python3", "-u", "-W", "error", "/srv/app/main.py")]:
        (rival,) = find_roots(root, PATH, command=command).rivals
        assert str(rival) == "/srv/app/sglang (the entry point)"
    assert find_roots(root, PATH, command=("python3", "-I", "/srv/app/main.py")).rivals == ()


def test_archives_on_the_path_are_looked_into(tmp_path: Path) -> None:
    import io as memory
    import zipfile

    def archive(name: str) -> bytes:
        out = memory.BytesIO()
        with zipfile.ZipFile(out, "w") as opened:
            opened.writestr(name, "")
        return out.getvalue()

    root = image(tmp_path, {**UBUNTU, **EDITABLE, "srv/a.zip": "PK", "usr/lib/python312.zip": "PK"})
    path = {**PATH, "PYTHONPATH": "/srv/a.zip:/srv/a.zip/inner:/srv/missing.zip"}

    def rivals(name: str) -> set[str]:
        found = find_roots(root, path, read=lambda _: archive(name))
        return {rival.path for rival in found.rivals}

    assert rivals("sglang/__init__.py") == {"/srv/a.zip/sglang/__init__.py"}
    assert rivals("sglang.pyc") == {"/srv/a.zip/sglang.pyc"}
    assert rivals("inner/sglang.py") == {"/srv/a.zip/inner/sglang.py"}
    assert rivals("other/sglang.py") == set()
    assert {rival.path for rival in find_roots(root, path).rivals} == {"/srv/a.zip"}  # it cannot be read


def test_a_directory_without_init_hides_what_a_finder_has(tmp_path: Path) -> None:
    name = "__editable___sglang_0_5_20_finder"
    files = {
        **UBUNTU,
        f"{TREE}/sglang/__init__.py": "",
        f"{DIST}/__editable__.sglang-0.5.20.pth": f"import {name}; {name}.install()",
        f"{DIST}/{name}.py": FINDER,
        "sgl-workspace/sglang/README": "",
    }
    root = image(tmp_path, files)
    assert find_roots(root, PATH).rivals == ()
    (rival,) = find_roots(root, PATH, working_dir="/sgl-workspace").rivals
    assert rival.path == "/sgl-workspace/sglang"


SHIM = (
    "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = os.environ.get(var, 'local') == 'local'; "
    "enabled and __import__('_distutils_hack').add_shim(); \n"
)
HOOK = """# install the apport exception handler if available
try:
    import apport_python_hook
except ImportError:
    pass
else:
    apport_python_hook.install()
"""


def test_code_that_runs_at_the_start_is_named_unless_it_is_known(tmp_path: Path) -> None:
    known = {
        f"{DIST}/distutils-precedence.pth": SHIM,
        "etc/python3.12/sitecustomize.py": HOOK,
        "usr/lib/python3.12/sitecustomize.py": "-> /etc/python3.12/sitecustomize.py",
    }
    (tmp_path / "known").mkdir()
    assert find_roots(image(tmp_path / "known", {**UBUNTU, **EDITABLE, **known}), PATH).code == ()
    changed = {
        f"{DIST}/distutils-precedence.pth": SHIM.rstrip() + " import evil\n",
        f"{DIST}/other.pth": "# fine\nimport evil\n",
        f"{DIST}/large.pth": "#" * 70_000 + "\nimport evil\n",
        "etc/python3.12/sitecustomize.py": HOOK + "import evil\n",
        f"{DIST}/usercustomize/__init__.py": "",
    }
    code = find_roots(image(tmp_path, {**UBUNTU, **EDITABLE, **known, **changed}), PATH).code
    assert [one.path for one in code] == [
        f"/{DIST}/distutils-precedence.pth",
        f"/{DIST}/large.pth",
        f"/{DIST}/other.pth",
        "/usr/lib/python3.12/sitecustomize.py",
    ]


def test_pythonpath_comes_first(tmp_path: Path) -> None:
    files = {**UBUNTU, **EDITABLE, "srv/mine/sglang/__init__.py": ""}
    root = image(tmp_path, files)
    assert find_roots(root, {**PATH, "PYTHONPATH": "/nowhere:/srv/mine/"}).root.path == "/srv/mine/sglang"
    relative = find_roots(root, {**PATH, "PYTHONPATH": "mine"}, working_dir="/srv")
    assert relative.root.path == "/srv/mine/sglang"


def test_directory_without_init_is_no_package(tmp_path: Path) -> None:
    files = {**UBUNTU, **EDITABLE, "srv/sglang/README": ""}
    assert find_roots(image(tmp_path, files), {**PATH, "PYTHONPATH": "/srv"}).root.path == f"/{TREE}/sglang"


def test_virtual_environment_hides_the_system(tmp_path: Path) -> None:
    files = {**UBUNTU, **VENV, f"{SITE}/sglang/__init__.py": "", f"{DIST}/sglang/__init__.py": ""}
    root = image(tmp_path, files)
    roots = find_roots(root, VENV_PATH)
    assert roots.root.path == f"/{SITE}/sglang"
    assert roots.interpreter.is_virtual
    assert f"/{DIST}" not in roots.search_path
    assert find_roots(root, PATH).root.path == f"/{DIST}/sglang"


def test_virtual_environment_may_include_the_system(tmp_path: Path) -> None:
    config = VENV["opt/sglang/pyvenv.cfg"].replace("false", "True")
    files = {**UBUNTU, **VENV, "opt/sglang/pyvenv.cfg": config, f"{SITE}/x.py": "", **EDITABLE}
    roots = find_roots(image(tmp_path, files), VENV_PATH)
    assert roots.root.path == f"/{TREE}/sglang"
    assert roots.search_path.index(f"/{SITE}") < roots.search_path.index(f"/{DIST}")


FINDER = f"""
from __future__ import annotations
import sys
MAPPING: dict[str, str] = {{'sglang': '/{TREE}/sglang', 'other': '/srv/other'}}
NAMESPACES: dict[str, list[str]] = {{}}
raise SystemExit("this file is never run")
"""


@pytest.mark.parametrize("finder", [FINDER, FINDER.replace(": dict[str, str]", "")])
def test_editable_finder_is_read_and_not_run(tmp_path: Path, finder: str) -> None:
    name = "__editable___sglang_0_5_20_finder"
    files = {
        **UBUNTU,
        f"{TREE}/sglang/__init__.py": "",
        f"{DIST}/__editable__.sglang-0.5.20.pth": f"import {name}; {name}.install()",
        f"{DIST}/{name}.py": finder,
    }
    assert find_roots(image(tmp_path, files), PATH).root.path == f"/{TREE}/sglang"


@pytest.mark.parametrize(
    "finder", ["MAPPING = {", "MAPPING = dict(a=1)", "MAPPING = {1: 2}", "(" * 5000, "\0"]
)
def test_finder_that_cannot_be_read_maps_nothing(tmp_path: Path, finder: str) -> None:
    files = {
        **UBUNTU,
        f"{DIST}/e.pth": "import __editable___x_finder",
        f"{DIST}/__editable___x_finder.py": finder,
    }
    with pytest.raises(ImageMismatch, match="no package sglang"):
        find_roots(image(tmp_path, files), PATH)


def test_pth_files_count_in_the_order_of_their_names(tmp_path: Path) -> None:
    files = {
        **UBUNTU,
        "srv/one/sglang/__init__.py": "",
        f"{DIST}/rel/sglang/__init__.py": "",
        f"{DIST}/b.pth": "/srv/one\n",
        f"{DIST}/a.pth": "\ufeff# comment\n\nimport os\nrel\n/srv/missing\n",
        f"{DIST}/.hidden.pth": "/srv/hidden",
        "srv/hidden/sglang/__init__.py": "",
    }
    roots = find_roots(image(tmp_path, files), PATH)
    assert roots.root.path == f"/{DIST}/rel/sglang"
    assert "/srv/missing" not in roots.search_path
    assert "/srv/hidden" not in roots.search_path
    assert [o.path for o in roots.others] == ["/srv/one/sglang"]


def test_package_behind_a_link_is_named_by_its_real_path(tmp_path: Path) -> None:
    files = {**UBUNTU, f"{TREE}/sglang/__init__.py": "", f"{DIST}/sglang": f"-> /{TREE}/sglang"}
    roots = find_roots(image(tmp_path, files), PATH)
    assert roots.root.path == f"/{TREE}/sglang"
    assert roots.others == ()


def test_other_packages_are_found_with_name_and_version(tmp_path: Path) -> None:
    files = {
        **UBUNTU,
        f"{DIST}/transformers/__init__.py": "",
        f"{DIST}/transformers-5.1.0.dist-info/METADATA": "Name: transformers\nVersion: 5.1.0\n",
        f"{DIST}/flashinfer/__init__.py": "",
        f"{DIST}/flashinfer_python-0.6.2.dist-info/METADATA": "Name: flashinfer-python\nVersion: 0.6.2\n",
        f"{DIST}/flashinfer_cubin-0.6.9.dist-info/METADATA": "Name: flashinfer-cubin\nVersion: 0.6.9\n",
    }
    root = image(tmp_path, files)
    found = [find_roots(root, PATH, package).root for package in ("transformers", "flashinfer")]
    assert [(r.distribution, r.version, r.upstream) for r in found] == [
        ("transformers", "5.1.0", "transformers"),
        ("flashinfer-python", "0.6.2", "flashinfer"),
    ]


def test_missing_package_lists_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ImageMismatch, match="no package sglang") as caught:
        find_roots(image(tmp_path, {**UBUNTU, f"{DIST}/": ""}), PATH)
    assert f"/{DIST}  (site directory)" in (caught.value.details or "")
    assert "/usr/lib/python3.12  (standard library)" in (caught.value.details or "")


def test_image_without_python_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImageMismatch, match="no Python") as caught:
        find_roots(image(tmp_path, {"usr/bin/perl": "ELF"}), PATH)
    assert caught.value.facts["searched"] == ["/usr/local/bin", "/usr/bin", "/bin"]


def test_python_without_library_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImageMismatch, match="library") as caught:
        find_interpreter(image(tmp_path, {"usr/bin/python3": "ELF"}), PATH)
    assert caught.value.where == "/usr/bin/python3"


def test_version_comes_from_the_library_where_the_name_has_none(tmp_path: Path) -> None:
    files = {"usr/local/bin/python3": "ELF", "usr/local/lib/python3.11/os.py": ""}
    assert find_interpreter(image(tmp_path, files), PATH).version == "3.11"


def test_first_executable_python_of_the_path_counts(tmp_path: Path) -> None:
    files = {**UBUNTU, "opt/conda/bin/python3.13": "ELF", "opt/conda/bin/python3": "-> python3.13"}
    root = image(tmp_path, {**files, "opt/conda/lib/python3.13/os.py": ""})
    found = find_interpreter(root, {"PATH": "/opt/conda/bin:/usr/bin"})
    assert (found.version, found.prefix) == ("3.13", "/opt/conda")


def test_pythonhome_moves_the_library(tmp_path: Path) -> None:
    files = {**UBUNTU, "opt/home/lib/python3.12/os.py": ""}
    found = find_interpreter(image(tmp_path, files), {**PATH, "PYTHONHOME": "/opt/home"})
    assert found.library == "/opt/home/lib/python3.12"


def test_all_bytecode_of_a_module_is_found_whatever_its_tag(tmp_path: Path) -> None:
    cache = f"{TREE}/sglang/__pycache__"
    names = [
        "a.cpython-312.pyc",
        "a.cpython-311.opt-2.pyc",
        "a.cpython-312.pyc.tmp",
        "ab.cpython-312.pyc",
        "a.b.c.pyc",
    ]
    files = {f"{cache}/{name}": "" for name in names}
    files[f"var/pyc/{TREE}/sglang/a.cpython-312.pyc"] = ""
    root = image(tmp_path, files)
    source = f"/{TREE}/sglang/a.py"
    assert [f.path for f in bytecode_of(root, source, {})] == [
        f"{cache}/a.cpython-311.opt-2.pyc",
        f"{cache}/a.cpython-312.pyc",
    ]
    assert len(bytecode_of(root, source, {"PYTHONPYCACHEPREFIX": "/var/pyc"})) == 3
    assert bytecode_of(root, f"/{TREE}/sglang/a.json", {}) == ()


def test_what_python_prefers_to_a_source_is_named(tmp_path: Path) -> None:
    files = {
        "p/a.py": "",
        "p/a.cpython-312-x86_64-linux-gnu.so": "",
        "p/ab.so": "",
        "p/b.py": "",
        "p/b/__init__.py": "",
    }
    root = image(tmp_path, files)
    assert shadows_of(root, "p/a.py") == ("p/a.cpython-312-x86_64-linux-gnu.so",)
    assert shadows_of(root, "p/b.py") == ("p/b/__init__.py",)
    assert shadows_of(root, "p/ab.py") == ("p/ab.so",)
    assert shadows_of(root, "p/c.py") == ()


PYTHONS = sorted({sys.executable, *(p for p in ["/usr/bin/python3"] if Path(p).exists())})


@pytest.mark.parametrize("system_site", [[], ["--system-site-packages"]])
@pytest.mark.parametrize("python", PYTHONS)
def test_search_path_is_the_one_a_real_python_has(
    tmp_path: Path, python: str, system_site: list[str]
) -> None:
    """A virtual environment of a real Python, asked by running it and by reading its files."""
    venv = tmp_path / "venv"
    command = [python, "-m", "venv", "--without-pip", "--symlinks", *system_site, str(venv)]
    subprocess.run(command, check=True)
    site = next(venv.glob("lib/python3.*/site-packages"))
    (tmp_path / "tree").mkdir()
    (site / "sub").mkdir()
    (site / "b.pth").write_text(f"{tmp_path}/tree\n{tmp_path}/missing\n")
    (site / "a.pth").write_text("# comment\nimport os\nsub\n")
    environment = {
        "PATH": f"{venv}/bin:/usr/bin",
        "PYTHONPATH": f"{tmp_path}/tree/../first",
        "HOME": "/nowhere",
    }
    told = subprocess.run(
        [f"{venv}/bin/python3", "-c", "import os, sys; print('\\n'.join([os.__file__, *sys.path[1:]]))"],
        check=True, capture_output=True, text=True, env=environment,
    ).stdout.split()  # fmt: skip
    library, *told = told
    expected = [os.path.normpath(p) for p in told if not p.endswith(".zip")]

    wanted = [venv, tmp_path / "tree", *map(Path, expected)]
    files: dict[str, str] = {}
    for path in dict.fromkeys(wanted):
        files.update(_as_files(path))
    binary = Path(python).resolve()
    files |= {str(binary).lstrip("/"): "ELF", library.lstrip("/"): ""}
    if python == "/usr/bin/python3":
        files["usr/bin/python3"] = f"-> {binary}"
    found = find_interpreter(root := image(tmp_path, files), environment)
    package = f"{site}/sglang/__init__.py".lstrip("/")
    roots = find_roots(image(tmp_path, {**files, package: ""}), environment)
    assert found.is_virtual
    assert root.lookup(str(site)) is not None
    assert list(roots.search_path) == expected


def _as_files(path: Path) -> dict[str, str]:
    """A directory as an image holds it: of an environment all, of others (large ones) what names paths."""
    files = {str(path).lstrip("/") + "/": ""} if path.is_dir() else {}
    for entry in sorted(path.glob("*.pth") if "venv" not in str(path) else path.rglob("*")):
        name = str(entry).lstrip("/")
        if entry.is_symlink():
            files[name] = f"-> {entry.readlink()}"
        elif entry.is_dir():
            files[name + "/"] = ""
        elif entry.suffix in (".pth", ".cfg"):
            files[name] = entry.read_text()
    return files
