"""A cluster with a real node on which the operator is installed from its own manifests and image."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster.daemons import wait_until
from e2e.cluster.node.node import Node
from e2e.cluster.places import ClusterError
from e2e.image.places import archive_path
from e2e.realnode.derived import Derived
from e2e.realnode.images import ROOT, Image
from trainop.engine.seen import Options

Json = dict[str, Any]
PREFIX = "e2e-"
NAMESPACE = "kubeflow"
OPERATOR = "deployment/training-operator"
COMPONENTS = ("mpi-ssh", "mpi-exec", "dijob")
"""Components of the manifests beside the overlay `standalone`."""
PATIENCE = 300.0
INIT_IMAGE = f"docker.io/library/{Options().pytorch_init_image}"
"""The default image of PyTorchJob's init container, for which the image `base` stands in: it has `sh` and `getent`."""


class RealCluster:
    """The cluster of one run; `node` has its kubelet, control plane and namespaces."""

    def __init__(self, name: str = "") -> None:
        self.node = Node(name or f"{PREFIX}{os.getpid()}", die_with_parent=True)
        self._references: dict[str, str] = {}

    def up(self) -> None:
        """Starts the node and installs the operator; returns when the API server refuses an invalid job.

        Raises `ClusterError` if something is missing or does not start.
        """
        if not archive_path().exists():
            raise ClusterError("the operator's image is not built: run `make image`")
        remove_leftovers()
        self.node.up([archive_path()])
        self.node.run("ctr", "images", "tag", "--force", self.load("base"), INIT_IMAGE)
        self.install()
        self._wait_for_webhook()

    def down(self, logs: Path | None = None) -> None:
        """Stops everything and removes its files. With `logs`, the logs of all programs are kept there."""
        if logs:
            self._keep_logs(logs)
        self.node.down()

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """The standard output of kubectl. Raises `ClusterError` with its error output if it fails."""
        return self.node.run("kubectl", *arguments, stdin=stdin)

    def get(self, *what: str, namespace: str = "") -> Json:
        """An object or a list, as `kubectl get -o json` prints it."""
        chosen = [f"--namespace={namespace}"] if namespace else []
        found: Json = json.loads(self.kubectl("get", "--output=json", *chosen, *what))
        return found

    def load(self, image: str) -> str:
        """The reference of an image (a name in `IMAGES`), which is imported into the node if it is not there yet."""
        if image not in self._references:
            built = Image(image)
            self.import_image(built)
            self._references[image] = built.reference
        return self._references[image]

    def operator_log(self) -> str:
        return self.kubectl("logs", f"--namespace={NAMESPACE}", OPERATOR)

    def import_image(self, image: Image | Derived) -> None:
        """Imports an image into the node, under its reference."""
        with tempfile.TemporaryFile("w+") as output:
            command = [*self.node.inside(), "ctr", "images", "import", "-"]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT) as process:
                assert process.stdin
                with contextlib.suppress(BrokenPipeError):  # then it has failed, and its output says why
                    image.write(process.stdin)
                    process.stdin.close()
            if process.returncode:
                output.seek(0)
                raise ClusterError(f"image {image.reference} could not be imported: {output.read()}")

    def install(self, *components: str) -> None:
        """Applies the manifests, with these components beside `COMPONENTS`, and waits for the rollout."""
        with tempfile.TemporaryDirectory(prefix="trainop-e2e-") as folder:
            manifests = os.path.relpath(ROOT / "manifests", Path(folder).resolve())
            own = {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "namespace": NAMESPACE,
                "resources": [f"{manifests}/crds", f"{manifests}/overlays/standalone"],
                "components": [f"{manifests}/components/{name}" for name in (*COMPONENTS, *components)],
            }
            Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(own))
            self.kubectl("apply", "--server-side", "--force-conflicts", "-k", folder)
        for name in (OPERATOR, "deployment/di-server"):
            self.kubectl("rollout", "status", f"--namespace={NAMESPACE}", name, f"--timeout={PATIENCE:.0f}s")

    def _wait_for_webhook(self) -> None:
        """Until it has its certificate, the API server skips the webhook, whose failure policy is Ignore."""
        job = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: 0-invalid, namespace: default}\n"

        def refusal() -> str:
            try:
                return self.kubectl(
                    "create", "--dry-run=server", "-f", "-", stdin=f"{job}spec: {{pytorchReplicaSpecs: {{}}}}\n"
                )
            except ClusterError as error:
                return str(error)

        if not wait_until(lambda: "denied the request" in refusal(), PATIENCE, every=0.5):
            raise ClusterError(f"the webhook is not called: {refusal()}")

    def _keep_logs(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for source in (self.node.data, self.node.control):
            for log in (source / "log").glob("*.log"):
                shutil.copy(log, folder)
        with contextlib.suppress(ClusterError):
            (folder / "operator.log").write_text(self.operator_log())


def remove_leftovers() -> None:
    """Removes what the nodes of killed runs have left: files and control groups."""
    for folder in Path("/var/tmp/trainop-node").glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX)
        if pid.isdecimal() and not Path("/proc", pid).exists():
            Node(folder.name).down()
