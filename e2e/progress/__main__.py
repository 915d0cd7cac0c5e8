"""transformers' KubeflowCallback and the SDK's update_trainjob_status, unchanged, report to our endpoint.

python -m e2e.progress

The operator runs on a real kube-apiserver, which makes and reviews the tokens. The clients are installed once, into
$TRAINOP_PROGRESS_CLIENTS or ~/.cache/trainop-progress-clients (360 MB).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from e2e.clients import environment, on_an_api_server
from e2e.cluster.controlplane import ControlPlane
from tests.server.test_progress import Access, Installation, create_job, shown
from trainop.progress import CA_CERT, TOKEN, URL

ROOT = Path(__file__).parents[2]
CLIENTS = {"kubeflow": "0.5.0", "transformers": "5.24.0"}


def install(plane: ControlPlane) -> None:
    crd = yaml.safe_load((ROOT / "manifests" / "crds" / "pytorchjobs.kubeflow.org.yaml").read_text(encoding="utf-8"))
    answer = plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    assert answer.status == 201, answer


def report(python: Path, client: str, host: str, access: Access, folder: Path) -> int:
    """Runs one client with what its pod has; its exit code."""
    (folder / "token").write_text(access.token)
    (folder / "ca.crt").write_text(access.authority)
    variables = {URL: access.url, CA_CERT: str(folder / "ca.crt"), TOKEN: str(folder / "token"), "RANK": "0"}
    command = [str(python), str(Path(__file__).with_name("client.py")), client, host]
    return subprocess.run(command, env={**os.environ, **variables, "PYTHONPATH": str(ROOT)}, check=False).returncode


def talk(python: Path, plane: ControlPlane, folder: Path) -> int:
    install(plane)
    installation = Installation(plane, folder / "operator.log", "--enable-scheme=PyTorchJob")
    installation.operator.start()
    try:
        for client, interpreter in (("transformers", python), ("sdk", python), ("trainop", Path(sys.executable))):
            access = installation.access(create_job(installation, client))
            if code := report(interpreter, client, installation.host, access, folder):
                return code
            found = installation.world.wait(
                lambda name=client: (
                    shown(installation.world, name).get("progressPercentage") == 100  # type: ignore[misc]  # mypy cannot infer the lambda
                    and shown(installation.world, name)
                ),
                f"the report of {client}",
            )
            print(f"{client}: {found}")
            assert any(each["value"].startswith("0.25") for each in found["metrics"]), found
        return 0
    finally:
        installation.operator.end()


def main() -> int:
    wanted = [f"{name}=={version}" for name, version in CLIENTS.items()]
    python = environment("progress-clients", "-".join(CLIENTS.values()), wanted)
    return on_an_api_server("progress", lambda plane, folder: talk(python, plane, folder))


if __name__ == "__main__":
    sys.exit(main())
