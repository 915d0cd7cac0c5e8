"""The operator as users run it: a separate process with a kubeconfig."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from e2e.cluster.daemons import free_ports, wait_until
from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent


OPERATORS: weakref.WeakSet[Operator] = weakref.WeakSet()
"""All operators of this process; a test that fails shows their logs."""


class Operator:
    """`python -m trainop operator` with free ports and a separate log; can be stopped and started again.

    `inside` is a command prefix, such as `unshare` with a mount namespace; `environment` is added to that of the tests;
    `program` replaces the operator of this checkout.
    """

    def __init__(
        self,
        log: Path,
        *flags: str,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "trainop", "operator"),
    ) -> None:
        metrics, probes, self.webhook_port = free_ports(3)
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self.probe_url = f"http://127.0.0.1:{probes}"
        self.log = log
        self.environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        self.environment.update(environment or {})
        self.command = [
            *(*inside, *program),
            f"--metrics-bind-address=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probes}",
            f"--webhook-server-port={self.webhook_port}",
            *flags,
        ]
        self.process: subprocess.Popen[bytes] | None = None
        OPERATORS.add(self)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return once /readyz answers 200."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, cwd=ROOT, env=self.environment)
        if wait:
            up = wait_until(lambda: not self.running or self.probe("/readyz")[0] == 200, PATIENCE)
            assert up, self.text()
            assert self.running, self.text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.exit_code()

    def exit_code(self) -> int:
        """The exit code of a process that ends by itself."""
        assert self.process is not None
        return self.process.wait(PATIENCE)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the process (SIGSTOP) for the duration of the context."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def wait_text(self, wanted: str) -> None:
        """Wait until the log contains `wanted`."""
        assert wait_until(lambda: wanted in self.text(), PATIENCE), self.text()

    def probe(self, path: str) -> tuple[int, str]:
        """HTTP status and body of a probe; status 0 while the port is closed."""
        return fetch(self.probe_url + path)

    def metric(self, series: str) -> float | None:
        """The value of one series, named as in the exposition format: `name{label="x"}`."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", fetch(self.metrics_url)[1], re.MULTILINE)
        return float(found.group(1)) if found else None

    def resident_mib(self) -> float:
        """Resident memory in MiB as the kernel counts it."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def text(self) -> str:
        return self.log.read_text(errors="replace")


def fetch(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  http, to a port that we chose
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (OSError, urllib.error.URLError) as error:
        return 0, str(error)
