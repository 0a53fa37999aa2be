"""A headless Chromium, driven through ChromeDriver by the W3C WebDriver protocol."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import missing

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Browser:
    """One window of a session."""

    def __init__(self, session: str) -> None:
        self._session = session

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return _request(method, f"{self._session}{path}", body)

    def open(self, path: Path) -> None:
        self.ask("POST", "/url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: object) -> Any:
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, key: str) -> None:
        """A key of the keyboard, for whatever has the focus (WebDriver's code points for special keys)."""
        codes = {
            "Tab": "\ue004",
            "Enter": "\ue007",
            "Escape": "\ue00c",
            "ArrowRight": "\ue014",
            "ArrowDown": "\ue015",
        }
        actions = [{"type": "keyDown", "value": codes[key]}, {"type": "keyUp", "value": codes[key]}]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def click(self, selector: str) -> None:
        found = self.ask("POST", "/element", {"using": "css selector", "value": selector})
        self.ask("POST", f"/element/{found[_ELEMENT]}/click", {})

    def devtools(self, command: str, **parameters: object) -> Any:
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def screenshot(self) -> bytes:
        return base64.b64decode(self.ask("GET", "/screenshot"))


@contextmanager
def browser(profile: Path, *, width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser with a window of this size in pixels and a fresh profile."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            missing(f"no {program}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(address)
        options = {"args": [*_ARGUMENTS, f"--user-data-dir={profile}", f"--window-size={width},{height}"]}
        capabilities = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        made = _request("POST", f"{address}/session", {"capabilities": capabilities})
        window = Browser(f"{address}/session/{made['sessionId']}")
        try:
            yield window
        finally:
            window.ask("DELETE", "")
    finally:
        driver.terminate()
        driver.wait(20)


def _wait_for(address: str) -> None:
    end = time.monotonic() + 30
    while True:
        try:
            _request("GET", f"{address}/status")
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return


def _request(method: str, address: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["value"]
