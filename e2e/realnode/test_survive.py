"""The trainings of examples/survive: preempted, drained, restarted and stalled, they lose no step that they could save.

The oracle is `e2e/survive/story.py`, the same as in `trainop run`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from e2e.realnode.cluster import PATIENCE, RealCluster
from e2e.realnode.debian import PYTHON
from e2e.realnode.faults import NODE
from e2e.realnode.oci import SITE
from e2e.realnode.proof import Json, Proof, replace_images
from e2e.survive.__main__ import TRANSFORMERS, frameworks
from e2e.survive.examples import EXAMPLES, Example
from e2e.survive.story import Story

T = TypeVar("T")
GRACE, STALL = "20s", "1m"
IMAGES = {"loop": "torch", "trainer": "base", "jit": "base", "mpi": "openmpi"}
"""The image of each example. What the Trainer needs has several GB: it is mounted, since the import of an image takes
longer than the test, and thrice the room."""
LARGE = ("trainer", "jit")


@pytest.fixture(scope="module")
def reporting(cluster: RealCluster) -> Iterator[RealCluster]:
    """The operator takes reports of progress."""
    cluster.install("progress")
    yield cluster
    cluster.install()


class NodeStage:
    """One example in the namespace of a test, with its checkpoints in a folder of the node."""

    def __init__(self, proof: Proof, example: Example, packages: Path | None) -> None:
        self.example = example
        self._packages = packages
        self._proof = proof
        version = example.group_version.partition("/")[2]
        self._resource = f"{example.plural}.{version}.kubeflow.org/{example.name}"
        self._logs: dict[tuple[str, str], tuple[subprocess.Popen[bytes], Path]] = {}
        self._folder = proof.cluster.node.data / "claims" / proof.namespace

    def start(self, image: str) -> None:
        """Applies the manifests, with a volume for the claim."""
        (self._folder / "checkpoints").mkdir(parents=True)
        objects = [self._volume(), *self.example.objects(0.05, GRACE)]
        reference = self._proof.cluster.load(image)
        for one in objects:
            replace_images(one, reference)
            if self._packages and self.example.specs in one.get("spec", {}):
                self._mount(one["spec"][self.example.specs], self._packages)
        self._proof.apply(yaml.safe_dump_all(objects), keep=True)

    @staticmethod
    def _mount(specs: Json, packages: Path) -> None:
        """Gives the pods a directory of the node in the place of the image's own packages of Python."""
        for replica in specs.values():
            pod = replica["template"]["spec"]
            pod["volumes"].append({"name": "packages", "hostPath": {"path": str(packages), "type": "Directory"}})
            for container in pod["containers"]:
                container["volumeMounts"].append({"name": "packages", "mountPath": SITE, "readOnly": True})

    def _volume(self) -> Json:
        claim = {"namespace": self._proof.namespace, "name": self.example.name}
        spec = {
            "capacity": {"storage": "10Mi"},
            "accessModes": ["ReadWriteMany"],
            "claimRef": claim,
            "hostPath": {"path": str(self.folder())},
        }
        return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": claim["namespace"]}, "spec": spec}

    def job(self) -> Json:
        return self._proof.job(self._resource)

    def patch(self, body: Json) -> None:
        self._proof.kubectl("patch", self._resource, "--type=merge", f"--patch={json.dumps(body)}")

    def drain(self) -> None:
        """All pods are evicted."""
        selector = f"--pod-selector=training.kubeflow.org/job-name={self.example.name}"
        try:
            self._proof.cluster.kubectl("drain", NODE, selector, f"--timeout={PATIENCE:.0f}s")
        finally:
            self._proof.cluster.kubectl("uncordon", NODE)

    def output(self) -> str:
        self._follow()
        return "\n".join(path.read_text(errors="replace") for _, path in self._logs.values())

    def _follow(self) -> None:
        """Begins to read the log of each container that has started since."""
        for pod in self._proof.get("pods")["items"]:
            for status in pod["status"].get("containerStatuses") or ():
                identity = status.get("containerID", "")
                if identity and "running" in status["state"] and (pod["metadata"]["uid"], identity) not in self._logs:
                    path = self._folder / f"{len(self._logs):04}.log"
                    name, namespace = pod["metadata"]["name"], self._proof.namespace
                    command = ["kubectl", f"--namespace={namespace}", "logs", "--follow", name]
                    with path.open("wb") as out:
                        process = subprocess.Popen(
                            [*self._proof.cluster.node.inside(), *command], stdout=out, stderr=subprocess.DEVNULL
                        )
                    self._logs[pod["metadata"]["uid"], identity] = (process, path)

    def folder(self) -> Path:
        return self._folder / "checkpoints"

    def wait(self, holds: Callable[[], T], what: str) -> T:
        found: T = self._proof.wait_until(holds, what, every=0.2)
        return found

    def wait_for_success(self) -> None:
        self._proof.wait_for(self._resource, "Succeeded")

    def close(self) -> None:
        for process, _ in self._logs.values():
            process.terminate()
            process.wait()
        self._proof.cluster.kubectl("delete", "persistentvolume", self._proof.namespace, "--wait=false")


def packages() -> Path:
    """torch and transformers, as `make test-survive` installs them."""
    found = frameworks().parents[1] / "lib" / f"python{PYTHON}" / "site-packages"
    if not found.is_dir():
        pytest.skip(f"the packages fit Python {PYTHON}, which the images have: make the environment .venv with it")
    return found


def row(name: str) -> Any:
    """The example, with what it needs."""
    full = [pytest.mark.full] if name in LARGE else []
    return pytest.param(name, marks=[pytest.mark.images(IMAGES[name]), *full])


@pytest.mark.parametrize("name", [row(name) for name in EXAMPLES])
def test_training(reporting: RealCluster, proof: Proof, name: str) -> None:
    """Every interruption, and what it costs"""
    stage = NodeStage(proof, EXAMPLES[name](), packages() if name in LARGE else None)
    story = Story(stage)
    begun = time.monotonic()
    try:
        stage.start(IMAGES[name])
        story.tell(STALL)
    finally:
        stage.close()
    for told in story.told:
        proof.expect(f"{told.how}: {told.wanted}", told.seen)
    if name in LARGE:
        proof.framework(f"transformers {TRANSFORMERS}")
    proof.remark(f"All in {time.monotonic() - begun:.0f} s.")
