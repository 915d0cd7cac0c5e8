"""Reports the progress of a training from inside a pod: `trainop.progress.report(step=120, total=1000, loss=0.31)`.

One file that needs only the standard library (Python 3.8 or later), so that it can be copied into an image. It speaks
the protocol of Kubeflow Trainer (KEP-2779) to the address that the operator puts into the environment of the pods of
jobs with the annotation `trainop.kubeflow.org/progress: "true"`; elsewhere it does nothing. A training never waits for
a report, and never fails because of one: a thread sends the newest report, and drops what cannot be sent.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import ssl
import threading
import time
import urllib.request
from datetime import datetime, timezone
from pathlib import Path

URL, CA_CERT, TOKEN = (
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
)
"""Names of environment variables: the URL, and the paths of the CA certificate and of the token."""

INTERVAL = 5.0
"""Seconds between two reports. The first and the last are sent at once."""
TIMEOUT = 5.0
MAX_METRICS, MAX_LENGTH = 256, 64
"""Limits of the protocol: the number of metrics, and the characters of a name and of a value."""

_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "PADDLE_TRAINER_ID", "PROCESS_ID")


def report(step: float | None = None, total: float | None = None, *, force: bool = False, **metrics: object) -> bool:
    """Reports that `step` of `total` steps are done, with further numbers such as `loss=0.31`; `checkpoint_step=` tells
    which step the last checkpoint contains. Returns whether the report will be sent: only rank 0 reports, at most once
    per 5 seconds, but for the first report, the last (`step >= total`) and those with `force`."""
    return _reporter().report(step, total, force, metrics)


def is_first() -> bool:
    """Whether this process is the one that reports: rank 0, as far as the environment names ranks."""
    for name in _RANKS:
        if os.environ.get(name, "").strip():
            return os.environ[name].strip() == "0"
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        task, cluster = config.get("task") or {}, config.get("cluster") or {}
        leaders = [role for role in ("chief", "master") if role in cluster] or ["worker"]
        return not task or (task.get("type") in leaders and int(task.get("index", 0)) == 0)
    except (ValueError, AttributeError, TypeError):
        return True


class Reporter:
    """Sends the reports of one process. `url` empty: none is sent."""

    def __init__(self, url: str, ca_cert: str, token: str) -> None:
        self._url, self._ca_cert, self._token = url, ca_cert, token
        self._lock = threading.Condition()
        self._next: bytes | None = None
        self._busy = False
        self._sent = float("-inf")
        self._began: tuple[float, float] | None = None
        self._thread: threading.Thread | None = None

    def report(self, step: float | None, total: float | None, force: bool, metrics: dict[str, object]) -> bool:
        """As `report` of the module."""
        if not self._url:
            return False
        now = time.monotonic()
        last = step is not None and total is not None and step >= total
        with self._lock:
            if not (force or last) and now - self._sent < INTERVAL:
                return False
            self._sent = now
            self._next = json.dumps({"trainerStatus": self._status(step, total, metrics, now)}).encode()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()
                atexit.register(self.flush)
            self._lock.notify_all()
        return True

    def flush(self, within: float = TIMEOUT) -> None:
        """Waits until the newest report is sent, for at most `within` seconds."""
        with self._lock:
            self._lock.wait_for(lambda: self._next is None and not self._busy, within)

    def _status(
        self, step: float | None, total: float | None, metrics: dict[str, object], now: float
    ) -> dict[str, object]:
        status: dict[str, object] = {"lastUpdatedTime": datetime.now(timezone.utc).isoformat(timespec="milliseconds")}  # noqa: UP017
        steps = {"current_step": step, "total_steps": total}
        named = {**{name: value for name, value in steps.items() if value is not None}, **metrics}
        if step is not None and total is not None and total > 0:
            status["progressPercentage"] = max(0, min(100, int(100 * step / total)))
            began, first = self._began = self._began or (now, step)
            if step > first:
                status["estimatedRemainingSeconds"] = max(0, round((now - began) / (step - first) * (total - step)))
        status["metrics"] = [
            {"name": str(name)[:MAX_LENGTH], "value": str(value)[:MAX_LENGTH]}
            for name, value in list(named.items())[:MAX_METRICS]
            if str(name) and str(value)
        ]
        return status

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
                self._lock.wait_for(lambda: self._next is not None)
                body, self._next, self._busy = self._next, None, True
            with contextlib.suppress(Exception):  # a training must not fail because of a report
                self._send(body)

    def _send(self, body: bytes | None) -> None:
        """Token and CA certificate are read each time, because both are renewed while the pod runs."""
        token = Path(self._token).read_text(encoding="utf-8").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310  # https, from the operator
        context = ssl.create_default_context(cafile=self._ca_cert or None)
        with urllib.request.urlopen(request, timeout=TIMEOUT, context=context) as answer:  # noqa: S310
            answer.read()


_reporters: dict[int, Reporter] = {}


def _reporter() -> Reporter:
    """That of this process. A forked child starts anew, because threads do not survive a fork."""
    process = os.getpid()
    if process not in _reporters:
        _reporters.clear()
        url = os.environ.get(URL, "") if is_first() else ""
        _reporters[process] = Reporter(url, os.environ.get(CA_CERT, ""), os.environ.get(TOKEN, ""))
    return _reporters[process]
