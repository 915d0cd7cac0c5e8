"""kubectl against a control plane of a test."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from e2e.cluster.controlplane import ControlPlane
from tests.needs import find_kubectl


class Kubectl:
    """Runs commands, as the administrator of the cluster or as another user, with these flags."""

    def __init__(self, plane: ControlPlane, *flags: str) -> None:
        self._command = [find_kubectl(), f"--kubeconfig={plane.kubeconfig}", *flags]

    def try_to(self, *arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [*self._command, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, check=False, text=True, input=stdin)

    def __call__(self, *arguments: object, stdin: str | None = None) -> str:
        done = self.try_to(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def list(self, *arguments: str) -> list[Any]:
        found: list[Any] = json.loads(self("get", *arguments, "--output=json"))["items"]
        return found
