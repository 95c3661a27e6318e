"""A headless Chromium for tests and benchmarks, driven through its DevTools protocol."""

import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# WebGL without a GPU.
_FLAGS = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--mute-audio")
# No connection but to the page.
_FLAGS += ("--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update")
_FLAGS += ("--disable-sync",)


class Browser:
    """One page in a headless Chromium; use it in a `with` block."""

    def __init__(self, width: int = 1280, height: int = 800):
        assert CHROMIUM is not None, "Chromium is not installed"
        self._folder = Path(tempfile.mkdtemp(prefix="browser-"))
        size = f"--window-size={width},{height}"
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", *_FLAGS]
        command += [size, "--remote-debugging-port=0", f"--user-data-dir={self._folder}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._numbers = itertools.count(1)
        self.console: list[str] = []
        self._socket = self._connect()
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def _connect(self) -> Any:
        from websockets.sync.client import connect

        port_file = self._folder / "DevToolsActivePort"
        wait_for(port_file.exists, 30, "Chromium to start")
        wait_for(lambda: port_file.read_text().count("\n") > 0, 10, "Chromium's port")
        port = port_file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            pages = [target for target in json.load(answer) if target["type"] == "page"]
        return connect(pages[0]["webSocketDebuggerUrl"], max_size=None).__enter__()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=300))
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                self.console.append(json.dumps(message["params"])[:600])

    def open(self, address: str) -> None:
        """Go to a page."""
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = 20.0) -> None:
        """Wait until a JavaScript expression is true."""
        wait_for(lambda: bool(self.evaluate(expression)), seconds, f"{expression} (console: {self.console[-3:]})")

    def click(self, text: str) -> None:
        """Click the button with this text."""
        found = f"[...document.querySelectorAll('button')].find(b => b.textContent.trim() === {json.dumps(text)})"
        self.wait(f"{found} !== undefined")
        self.evaluate(f"{found}.click()")

    def fill(self, label: str, value: str) -> None:
        """Type a value into the text field with this label, and leave it."""
        found = f"[...document.querySelectorAll('label')].find(l => l.textContent === {json.dumps(label)})"
        self.wait(f"{found} !== undefined")
        field = f"{found}.closest('div').parentElement.parentElement.querySelector('input[type=text]')"
        self.evaluate(f"{field}.focus()")
        self.evaluate(f"{field}.select()")
        self.call("Input.insertText", text=value)
        self.press("Enter", 13)

    def choose(self, shown: str, value: str) -> None:
        """Choose another value of the list that shows a value."""
        self.evaluate(f"[...document.querySelectorAll('input')].find(i => i.value === {json.dumps(shown)}).click()")
        found = f"[...document.querySelectorAll('[role=option]')].find(o => o.textContent === {json.dumps(value)})"
        self.wait(f"{found} !== undefined")
        self.evaluate(f"{found}.click()")

    def open_tab(self, name: str) -> None:
        """Click the tab with this name."""
        found = f"[...document.querySelectorAll('[role=tab]')].find(t => t.textContent === {json.dumps(name)})"
        self.wait(f"{found} !== undefined")
        self.click_at(found)

    def click_at(self, element: str) -> None:
        """Click the middle of the element that a JavaScript expression finds, with the mouse."""
        box = self.evaluate(f"(r => [r.x, r.y, r.width, r.height])({element}.getBoundingClientRect())")
        x, y = box[0] + box[2] / 2, box[1] + box[3] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, code: int) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def screenshot(self, path: Path) -> None:
        """Write a png of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def kill(self) -> None:
        """End the browser without a word to the page."""
        self.process.kill()
        self.process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the browser."""
        self._socket.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def wait_for(condition: Any, seconds: float, what: str) -> None:
    """Wait until a function returns true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def environment() -> dict[str, str]:
    """Variables for a child process that imports this tree."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
