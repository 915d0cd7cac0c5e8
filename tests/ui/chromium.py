"""Debian's Chromium without a window, driven by its debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.patience import PATIENCE


def find() -> str:
    """Its path; skips the test where it is not installed."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


class Tab:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.problems: list[str] = []
        """What the console of the page has: errors, and what its policy has refused."""

    async def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = json.loads(await self._socket.receive_str())
                if answer.get("id") == self._number:
                    assert "error" not in answer, answer
                    return answer["result"]
                if answer.get("method") in {"Log.entryAdded", "Runtime.exceptionThrown"}:
                    self.problems.append(json.dumps(answer["params"])[:500])

    async def open(self, url: str, width: int = 1600, height: int = 1000, *, dark: bool = False) -> None:
        await self.call("Log.enable")
        await self.call("Runtime.enable")
        await self.call("Page.enable")
        await self.size(width, height)
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        await self.call("Page.navigate", url=url)

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def evaluate(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def text(self, selector: str) -> str:
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    async def wait_for(self, script: str, within: float = 40.0) -> Any:
        """The first true value of the script."""
        end = asyncio.get_running_loop().time() + within
        while not (found := await self.evaluate(f"(() => {{try {{return {script}}} catch {{return null}}}})()")):
            assert asyncio.get_running_loop().time() < end, (
                script,
                self.problems,
                (await self.text("body"))[-3000:],
            )
            await asyncio.sleep(0.05)
        return found

    async def press(self, key: str) -> None:
        code = {"Escape": 27}.get(key, ord(key.upper()) if len(key) == 1 else 0)
        text = {"text": key} if len(key) == 1 else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def picture(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))  # noqa: ASYNC240  # a small file


class Browser:
    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session, self._port = session, port

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        async with self._session.put(f"http://127.0.0.1:{self._port}/json/new?about:blank") as answer:
            target = await answer.json()
        async with self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            yield Tab(socket)
            with suppress(aiohttp.ClientError):
                await self._session.get(f"http://127.0.0.1:{self._port}/json/close/{target['id']}")


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Browser]:
    """A browser with a profile in `folder`."""
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    process = await asyncio.create_subprocess_exec(
        find(),
        *flags,
        *quiet,
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        port = await _port(folder / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            yield Browser(session, port)
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), PATIENCE)


async def _port(path: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(FileNotFoundError, IndexError, ValueError):
                return int(path.read_text().splitlines()[0])  # noqa: ASYNC240  # a small file
            assert process.returncode is None, "Chromium has ended"
            await asyncio.sleep(0.05)
