"""The commands of docs/migrate.md, with kubectl, on a cluster where training-operator is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from e2e.cluster.controlplane import ControlPlane
from e2e.peers import PEERS
from tests.needs import find_kubectl
from tests.server.world import Json

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "migrate.md"
IMAGE = "registry.example/trainop:1"
DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
WEBHOOKS = (
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/validator.training-operator.kubeflow.org"
)
UPSTREAM = re.compile(r'"github\.com/kubeflow/training-operator\.git/manifests/([^"?]*)\?ref=v1\.9\.2"')


def commands(heading: str) -> str:
    """The shell commands below a heading, with the release's manifests from the disk."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    text = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL))
    assert text
    return UPSTREAM.sub(lambda found: str(PEERS["training-operator"].manifest_folder / found[1]), text)


def run(plane: ControlPlane, script: str) -> str:
    folders = [str(Path(find_kubectl()).parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": ":".join(folders), "KUBECONFIG": str(plane.kubeconfig), "IMAGE": IMAGE}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def meaningful(deployment: Json) -> Json:
    """The spec without what the API server adds."""
    spec = deployment["spec"]
    return {"replicas": spec["replicas"], "selector": spec["selector"], "template": spec["template"]}


def webhooks(plane: ControlPlane) -> dict[str, str]:
    """Name -> failure policy."""
    return {each["name"]: each["failurePolicy"] for each in plane.api("GET", WEBHOOKS).body["webhooks"]}


def test_there_and_back(plane: ControlPlane) -> None:
    installed = commands("Go back").splitlines()[1]
    assert installed.startswith("kubectl apply")
    run(plane, installed)
    theirs = meaningful(plane.api("GET", DEPLOYMENT).body)
    their_webhooks = webhooks(plane)
    assert set(their_webhooks.values()) == {"Fail"}

    run(plane, commands("Before"))
    run(plane, commands("Replace"))
    printed = run(plane, f"trainop manifests --print --image {IMAGE}")
    asked = next(each for each in yaml.safe_load_all(printed) if each["kind"] == "Deployment")
    found, wanted = plane.api("GET", DEPLOYMENT).body["spec"]["template"]["spec"], asked["spec"]["template"]["spec"]
    (container,), (expected,) = found["containers"], wanted["containers"]
    assert container["image"] == IMAGE
    assert container["command"] == expected["command"]
    assert [each["name"] for each in container["env"]] == [each["name"] for each in expected["env"]]
    assert [each["containerPort"] for each in container["ports"]] == [p["containerPort"] for p in expected["ports"]]
    assert found.get("volumes") == wanted.get("volumes"), "nothing of training-operator's pod is left"
    assert container.get("volumeMounts") == expected.get("volumeMounts")
    assert set(webhooks(plane).values()) == {"Ignore"}

    run(plane, commands("Go back"))
    assert meaningful(plane.api("GET", DEPLOYMENT).body) == theirs
    assert webhooks(plane) == their_webhooks
