"""A probe runs behind walls, and whatever goes wrong with it is ``unknown`` with the reason."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from builder.errors import InvalidInput, ProbeFailed, Unavailable
from builder.probe.harness import Answer
from builder.probe.run import Prober, read_probe, run_probe
from builder.probe.trees import MappingTree

TREE = MappingTree({"python/sglang/a.py": b"x = 41\n", "python/sglang/b.py": b"y = 1\n"})
Ask = Callable[..., Answer]
HEAD = "from builder.probe.harness import *\n"


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    with Prober(timeout=20) as prober:
        yield prober


@pytest.fixture
def ask(prober: Prober, tmp_path: Path) -> Ask:
    """Ask a probe whose function has this body."""

    def ask(body: str, head: str = HEAD) -> Answer:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        path = tmp_path / "x.py"
        path.write_text(f"{head}def probe(tree):\n{lines}")
        return prober.ask(path, TREE)

    return ask


def test_probe_reads_the_tree(ask: Ask) -> None:
    body = (
        "value = Program(tree).module('sglang.a').x + 1\n"
        "read = tree.read('python/sglang/b.py')\n"
        "there = ['python/sglang/b.py' in tree, 'c' in tree, list(tree.paths('python/sglang/a'))]\n"
        "return fixed(f'{value} {there} {tree.grep(bytes([121]))} {read!r}', 'torch')"
    )
    evidence = "42 [True, False, ['python/sglang/a.py']] ['python/sglang/b.py'] b'y = 1\\n'"
    assert ask(body) == Answer("fixed", evidence, ("torch",))


def test_missing_file_is_a_key_error(ask: Ask) -> None:
    assert (
        ask("try:\n    tree.read('nowhere')\nexcept KeyError:\n    return defect('not there')").state
        == "defect"
    )


OUTSIDE = {
    "read a file": "open('/etc/passwd')",
    "read a file by descriptor": "import os; os.open('/etc/passwd', os.O_RDONLY)",
    "write a file": "open('{tmp}/new', 'w')",
    "write by pathlib": "import pathlib; pathlib.Path('{tmp}/new').write_text('x')",
    "remove a file": "import os; os.remove('{tmp}/victim')",
    "rename a file": "import os; os.rename('{tmp}/victim', '{tmp}/gone')",
    "make a directory": "import os; os.mkdir('{tmp}/new')",
    "change a mode": "import os; os.chmod('{tmp}/victim', 0)",
    "list a directory": "import os; os.listdir('{tmp}')",
    "make a link": "import os; os.symlink('/etc/passwd', '{tmp}/new')",
    "open a socket": "import socket; socket.socket()",
    "connect": "import socket; socket.create_connection(('127.0.0.1', {port}), 5)",
    "resolve a name": "import socket; socket.getaddrinfo('example.com', 80)",
    "run a program": "import subprocess; subprocess.run(['touch', '{tmp}/new'])",
    "run a shell": "import os; os.system('touch {tmp}/new')",
    "replace the process": "import os; os.execv('/bin/true', ['true'])",
    "spawn": "import os; os.posix_spawn('/bin/true', ['true'], {{}})",
    "fork": "import os; os.fork()",
    "signal the parent": "import os; os.kill(os.getppid(), 9)",
    "load C code": "import ctypes; ctypes.CDLL(None).unlink(b'{tmp}/victim')",
    "start a thread": "import threading; threading.Thread(target=print).start()",
    "share memory": "from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=64)",
    "raise its limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "a temporary file": "import tempfile; tempfile.mkstemp()",
    "import a package": "import yaml",
}


@pytest.mark.parametrize("attempt", OUTSIDE)
def test_nothing_outside_can_be_reached(ask: Ask, tmp_path: Path, attempt: str) -> None:
    (tmp_path / "victim").write_text("here")
    tmp_path.chmod(0o777)
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = OUTSIDE[attempt].format(tmp=tmp_path, port=server.getsockname()[1])
        server.settimeout(0)
        answer = ask(f"{code}\nreturn fixed('it could')")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert answer.state == "unknown", answer
    assert (tmp_path / "victim").read_text() == "here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["victim", "x.py"]


# Ways round the audit hook: it is not told of these, or lets the import through that it sees.
ROUND_THE_HOOK = {
    "load an extension by its file": (
        "import _imp, importlib.machinery as m\n"
        "_imp.create_dynamic(m.ModuleSpec('readline', None, origin='{extension}'))"
    ),
    "make a pipe": "import posix; posix.mkfifo('{tmp}/new')",
    "make a device": "import posix; posix.mknod('{tmp}/new')",
    "open shared memory": "import _posixshmem as s; s.shm_open('/overlay-test', 0o102, 0o600)",
    "remove shared memory": "import _posixshmem as s; s.shm_unlink('{shared}')",
    "signal through a descriptor": "import _signal; _signal.pidfd_send_signal(0, 0)",
    "take the processor": "import posix; posix.setpriority(0, 0, 19)",
    "choose processors": "import posix; posix.sched_setaffinity(0, [0])",
    "ignore the alarm": "import _signal; _signal.signal(_signal.SIGALRM, _signal.SIG_IGN)",
    "connect": "import _socket; _socket.socket().connect(('127.0.0.1', {port}))",
}


@pytest.mark.parametrize("attempt", ROUND_THE_HOOK)
def test_the_kernel_holds_what_the_audit_hook_does_not_see(ask: Ask, tmp_path: Path, attempt: str) -> None:
    import readline

    tmp_path.chmod(0o777)
    shared = shared_memory.SharedMemory(create=True, size=16)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0)
            port = server.getsockname()[1]
            extension = getattr(readline, "__file__", "")
            code = ROUND_THE_HOOK[attempt].format(
                tmp=tmp_path, shared=shared.name, port=port, extension=extension
            )
            answer = ask(f"{code}\nreturn fixed('it could')")
            with pytest.raises(BlockingIOError):
                server.accept()
    finally:
        shared.close()
        shared.unlink()  # fails where the probe removed it
    assert answer.state == "unknown", answer
    assert [path.name for path in tmp_path.iterdir()] == ["x.py"]


def test_no_environment_is_inherited(ask: Ask) -> None:
    assert ask("import os\nreturn fixed(repr(dict(os.environ)))").evidence == "{}"


FORGED = 'b\'{"do": "answer", "state": "fixed", "evidence": "x", "pins": [], "site": ""}\''


@pytest.mark.parametrize("data", ["len(f).to_bytes(4, 'big') + f", "f", "b'\\xff' * 100"])
@pytest.mark.parametrize("end", ["posix._exit(0)", "pass"])
def test_what_the_source_writes_on_the_channel_is_no_answer(ask: Ask, data: str, end: str) -> None:
    body = (
        f"import posix\nf = {FORGED}\n"
        "for number in range(3, 64):\n"
        "    try:\n"
        f"        posix.write(number, {data})\n"
        "    except OSError:\n"
        "        pass\n"
        f"{end}\nreturn fixed('x')"
    )
    with pytest.raises(ProbeFailed, match="own channel"):
        ask(body)
    assert ask("return fixed('x')") == Answer("fixed", "x")  # the next one is not harmed


def test_a_probe_that_never_reads_its_pipe_ends_at_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "deaf.py"
    body = "    cells = dict(zip(tree._asked.__code__.co_freevars, tree._asked.__closure__))\n"
    body += "    for _ in range(3):\n        cells['send'].cell_contents({'do': 'read', 'path': 'large'})\n"
    path.write_text(f"{HEAD}def probe(tree):\n{body}    while True: pass\n")
    begin = time.monotonic()
    answer = run_probe(path, MappingTree({"large": b"x" * (8 << 20)}), timeout=2)
    assert answer == Answer("unknown", "the probe took longer than 2 s")
    assert time.monotonic() - begin < 20


BROKEN = {
    "raises": ("raise ValueError('no')", "ValueError: no"),
    "exits": ("import sys; sys.exit(0)", "SystemExit"),
    "ends the process": ("import os; os._exit(0)", "ended with status 0 without an answer"),
    "crashes": ("import faulthandler; faulthandler._read_null()", "SIGSEGV"),
    "answers nothing": ("return None", "NoneType"),
    "has another state": ("return Answer('perfect', 'x')", "no answer"),
    "takes all memory": ("x = bytearray(1 << 34)", "MemoryError"),
    "recurses for ever": ("def f(): return f()\nf()", "RecursionError"),
    "cannot tell": ("raise CannotTell('because')", "because"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_probe_is_unknown_with_the_reason(ask: Ask, kind: str) -> None:
    body, reason = BROKEN[kind]
    answer = ask(body)
    assert answer.state == "unknown"
    assert reason in answer.evidence, answer


@pytest.mark.parametrize(
    "head",
    [
        "def",
        "raise ValueError('at import')\n",
        "import yaml\n",
        "\0",
        "from builder.patch.patch import parse_patch\n",
    ],
)
def test_probe_that_does_not_load_is_unknown(ask: Ask, head: str) -> None:
    answer = ask("return fixed('x')", head)
    assert answer.state == "unknown"
    assert "does not load" in answer.evidence


def test_next_probe_is_not_harmed_by_the_one_before(ask: Ask) -> None:
    for body, _ in BROKEN.values():
        ask(body)
    ask("import builtins; builtins.len = None")
    assert ask("return fixed(str(len('xyz')))") == Answer("fixed", "3")


def test_output_of_the_source_harms_nothing(ask: Ask) -> None:
    body = "import sys\nprint('x' * 100000)\nsys.stderr.write('y')\nsys.stdin.read()\nreturn fixed('x')"
    assert ask(body) == Answer("fixed", "x")


def test_evidence_is_one_printable_line(ask: Ask) -> None:
    answer = ask("return defect('a\\nb\\x1b[31m' + 'c' * 5000)")
    assert answer.evidence.startswith("a b [31mcc")
    assert len(answer.evidence) == 1000


def test_standard_library_of_the_probe_is_there(ask: Ask) -> None:
    head = HEAD + "import sqlite3, colorsys\nfrom xml.etree import ElementTree\n"
    assert ask("return fixed(str(colorsys.rgb_to_hls(1, 1, 1)[1]))", head) == Answer("fixed", "1.0")


@pytest.mark.parametrize("body", ["import time; time.sleep(60)", "while True: pass"])
def test_time_is_bounded(tmp_path: Path, body: str) -> None:
    path = tmp_path / "slow.py"
    path.write_text(f"{HEAD}def probe(tree):\n    {body}\n")
    begin = time.monotonic()
    answer = run_probe(path, TREE, timeout=1)
    assert answer == Answer("unknown", "the probe took longer than 1 s")
    assert time.monotonic() - begin < 10


def test_nothing_is_left_running(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(f"{HEAD}def probe(tree):\n    import time; time.sleep(60)\n")
    before = set(_children())
    run_probe(path, TREE, timeout=1)
    path.write_text(f"{HEAD}def probe(tree): return fixed('x')\n")
    assert run_probe(path, TREE).state == "fixed"
    deadline = time.monotonic() + 10
    while set(_children()) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(_children()) <= before


def _children() -> list[int]:
    """Processes that run the sandbox."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and b"builder.probe.sandbox" in words and int(entry.name) != os.getpid():
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in (os.getpid(), 1):
                found.append(int(entry.name))
    return found


def test_error_in_reading_the_tree_is_ours(prober: Prober, tmp_path: Path) -> None:
    class Failing(MappingTree):
        def read(self, path: str) -> bytes:
            raise Unavailable("git ended")

    path = tmp_path / "x.py"
    path.write_text(f"{HEAD}def probe(tree): return fixed(str(tree.read('a')))\n")
    with pytest.raises(Unavailable):
        prober.ask(path, Failing({}))
    assert prober.ask(path, MappingTree({"a": b"1"})).state == "fixed"


def test_missing_probe_is_an_error(prober: Prober, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        prober.ask(tmp_path / "nowhere.py", TREE)


def test_machinery_that_does_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.probe.run._START", "raise OSError('no room')")
    path = tmp_path / "x.py"
    path.write_text(f"{HEAD}def probe(tree): return fixed('x')\n")
    answer = run_probe(path, TREE)
    assert answer.state == "unknown"
    assert answer.evidence.endswith("OSError: no room")


def test_a_probe_imports_what_lies_in_support_beside_it(tmp_path: Path) -> None:
    (tmp_path / "support").mkdir()
    (tmp_path / "support" / "one.py").write_text(
        "import colorsys\nfrom support.two import TWO\nONE = TWO - 1\n"
    )
    (tmp_path / "support" / "two.py").write_text("TWO = 2\n")
    path = tmp_path / "asks.py"
    path.write_text(
        "from builder.probe.harness import defect, fixed\nfrom support.one import ONE\n"
        "def probe(tree):\n    return fixed('') if ONE == 1 else defect('')\n",
    )
    assert run_probe(path, TREE).state == "fixed"
    before = read_probe(path)
    (tmp_path / "support" / "two.py").write_text("TWO = 3\n")
    assert read_probe(path) != before  # another probe, as far as kept answers go
    assert run_probe(path, TREE).state == "defect"
    (tmp_path / "support" / "two.py").unlink()
    with pytest.raises(InvalidInput) as missing:
        run_probe(path, TREE)
    assert missing.value.where == str(tmp_path / "support" / "two.py")
