"""A training in `trainop run`, as a process of its own, on whose cluster the tests act."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from e2e.survive.examples import ROOT, Example, Json
from tests.patience import PATIENCE

T = TypeVar("T")
STALL = "15s"
"""Three times as long as the pause between two reports: on a busy machine, they come late."""
QUICK = """
import trainop.controllers.progress.feed as feed, trainop.engine.stalls as stalls
stalls.SHORTEST, feed.INTERVAL, feed.LATENCY = 1.0, 1.0, 1.0
from trainop.cli import main
main()
"""
"""`trainop` with stalls of seconds instead of minutes."""


class LocalStage:
    """One run; `data` is the directory of its cluster."""

    def __init__(self, example: Example, data: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self.example = example
        self.data = data
        self.process = process
        self._log = log
        self._path = f"/apis/{example.group_version}/namespaces/default/{example.plural}/{example.name}"

    def job(self) -> Json:
        found: Json = self.ask("GET", self._path)
        return found

    def patch(self, body: Json) -> None:
        self.ask("PATCH", self._path, body)

    def drain(self) -> None:
        """Evicts the pod of the last rank."""
        pod = f"{self.example.name}-{self.example.last}"
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
        self.ask("POST", f"/api/v1/namespaces/default/pods/{pod}/eviction", eviction)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def folder(self) -> Path:
        (found,) = self.data.rglob("checkpoint.json")
        return found.parent

    def wait(self, holds: Callable[[], T], what: str) -> T:
        end = time.monotonic() + PATIENCE
        while not (found := holds()):
            if self.process.poll() is not None:
                raise AssertionError(f"ended before: {what}\n{self.output()}")
            if time.monotonic() > end:
                raise AssertionError(f"not: {what}\n{self.output()}\n{json.dumps(self.job(), indent=1)}")
            time.sleep(0.1)
        return found

    def wait_for_success(self) -> None:
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not: the end\n{self.output()}") from None
        assert code == 0, self.output()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Raises `urllib.error.HTTPError`."""
        config = json.loads((self.data / "kubeconfig").read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {user['token']}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(cluster["server"] + path, data, headers, method=method)
        context = ssl.create_default_context(cadata=authority)
        with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
            return json.loads(answer.read())


@contextmanager
def running(
    example: Example, folder: Path, *options: str, seconds: float = 0.05, python: str | Path = sys.executable
) -> Iterator[LocalStage]:
    """Runs the example until the block ends; its files are below `folder`. The command `python` in pods is that of the
    interpreter."""
    manifest, log, data = folder / "job.yaml", folder / "output", folder / "data"
    manifest.write_text(yaml.safe_dump_all(example.objects(seconds, "15s")))
    command = [str(python), "-c", QUICK, "run", "--data", str(data), *options, str(manifest)]
    variables = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=out, stderr=subprocess.STDOUT)
    stage = LocalStage(example, data, process, log)
    try:
        yield stage
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
