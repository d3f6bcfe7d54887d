"""A headless Chromium, driven over its debugging pipe without further packages."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """$SEGCAL_BROWSER, or the first Chromium on the path."""
    return os.environ.get("SEGCAL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a headless Chromium. `errors` and `requests` collect its events."""

    def __init__(self, program: str) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        self._home = tempfile.mkdtemp(prefix="segcal-browser-")
        # The browser reads commands from file descriptor 3 and answers on 4, JSON between zero
        # bytes. bash is needed because a plain sh may not support descriptors above 9.
        keep = (to_read, to_write)
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}', program,
             "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--hide-scrollbars", "--no-first-run", "--disable-background-networking",
             "--disable-extensions", "--disable-component-update", "--disable-sync",
             "--remote-debugging-pipe",
             f"--user-data-dir={self._home}", "about:blank"],
            pass_fds=keep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in keep:
            os.close(end)
        self._number, self._buffer = 0, b""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session = ""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its answer; events in between are recorded."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)
        raise TimeoutError(method)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            more = os.read(self._read, 1 << 16)
            if not more:
                raise RuntimeError("the browser has exited")
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _note(self, event: dict[str, Any]) -> None:
        name, params = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif name == "Runtime.consoleAPICalled":
            self.errors.append(str(params["args"]))
        elif name == "Log.entryAdded":
            self.errors.append(params["entry"]["text"])
        elif name == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {params['message']}")
            # It stops the page until it is closed. The answer is recorded as an event is.
            close = {"id": 0, "method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
            message = json.dumps({**close, "sessionId": self._session})
            os.write(self._write, message.encode() + b"\0")
        elif name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path: Path, *, width: int = 1400, height: int = 1000, dark: bool = False,
             scripts: bool = True) -> None:  # fmt: skip
        """Load a file and wait until it is complete."""
        self.errors.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            state = self.run("document.readyState + location.href")
            if state == "complete" + path.resolve().as_uri():
                return
            time.sleep(0.05)
        raise TimeoutError(str(path))

    def run(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        deadline = time.monotonic() + 10
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key on the focused element."""
        text = {"Enter": "\r", " ": " "}.get(key, "")
        arrows = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        code = {"Enter": 13, " ": 32, "Tab": 9, **arrows}[key]
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )  # fmt: skip

    def close(self) -> None:
        """Stop the browser."""
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._home, ignore_errors=True)
