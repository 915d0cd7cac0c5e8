"""A new cluster with jobs, on which versions of the manifests are installed one after the other."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster.controlplane import ControlPlane
from tests.server.pod import NAME, PodStandIn, flags_of
from tests.server.process import Operator
from tests.server.world import Json
from tests.upgrades.fleet import Fleet
from tests.upgrades.versions import FIELD, FLAG, Version

HOME = "kubeflow"
CONFIGURATIONS = {
    "validatingwebhookconfigurations/validator.training-operator.kubeflow.org",
    "validatingwebhookconfigurations/di-validating-webhook-configuration",
    "mutatingwebhookconfigurations/di-mutating-webhook-configuration",
}
Install = Callable[[Version], None]


class Cluster:
    """`make_operator` is the fixture of the tests on an API server."""

    def __init__(self, plane: ControlPlane, folder: Path, make_operator: Callable[..., Operator], kubectl: str) -> None:
        self.plane = plane
        self._make_operator = make_operator
        self._kubectl = kubectl
        self._stand_in = PodStandIn(plane, folder / "serviceaccount", make_operator)
        self._operator: Operator | None = None
        self.environment = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "HOME": str(folder)}

    def kubectl(self, version: Version, *arguments: str) -> subprocess.CompletedProcess[str]:
        """In the folder of the version."""
        return subprocess.run(
            [self._kubectl, *arguments],
            cwd=version.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def apply(self, version: Version, *command: str) -> None:
        """The documented steps: first the CRDs, then the operator."""
        for folder in ("manifests/crds", "."):
            done = self.kubectl(version, *command, "-k", folder)
            assert done.returncode == 0, done.stderr
            assert "conflict" not in done.stderr
        self.check_crds(version)

    def differences(self, version: Version, *command: str) -> str:
        """What `kubectl diff` shows between the version and the cluster."""
        done = [self.kubectl(version, "diff", *command, "-k", folder) for folder in ("manifests/crds", ".")]
        return "".join(each.stdout + each.stderr for each in done if each.returncode)

    def get(self, path: str) -> Any:
        answer = self.plane.api("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.body

    def deployment(self) -> Json:
        found: Json = self.get(f"/apis/apps/v1/namespaces/{HOME}/deployments/{NAME}")
        return found

    def check_installed(self, version: Version) -> None:
        """Whether the image and the flags are those of the version."""
        container = self.deployment()["spec"]["template"]["spec"]["containers"][0]
        assert container["image"].endswith(f":{version.tag}")
        assert (FLAG in container["command"]) is version.follows

    def check_crds(self, version: Version) -> None:
        for crd in self.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]:
            for each in crd["spec"]["versions"]:
                spec = each["schema"]["openAPIV3Schema"]["properties"]["spec"]
                assert (FIELD in spec.get("properties", {})) is version.follows, crd["metadata"]["name"]

    def authorities(self) -> set[str]:
        """The CAs of all webhooks; `""` stands for none."""
        found = [self.get(f"/apis/admissionregistration.k8s.io/v1/{path}") for path in CONFIGURATIONS]
        return {each["clientConfig"].get("caBundle", "") for item in found for each in item["webhooks"]}

    def restart(self, *, installed: bool) -> Operator:
        """The operator anew, with the flags of the Deployment. `installed`: with the rights of its service account
        alone; otherwise those of an administrator, as the recorded version may grant other ones."""
        if self._operator:
            self._operator.end()
        flags = flags_of(self.deployment())
        if installed:
            self._operator = self._stand_in.start(HOME, *flags)
        else:
            place = {"MY_POD_NAMESPACE": HOME}
            self._operator = self._make_operator(self.plane.kubeconfig, *flags, environment=place)
            self._operator.start()
        return self._operator


def upgrade_and_return(
    cluster: Cluster, before: Version, after: Version, steps: Sequence[Install], check: Install
) -> None:
    """Install one version, the other, and the first again, while jobs of every kind run: no write reaches them."""
    install, upgrade, go_back = steps
    install(before)
    operator = cluster.restart(installed=False)
    fleet = Fleet(cluster.plane.api, "team")
    fleet.create()
    fleet.wait_complete()
    fleet.wait_written()
    fleet.wait_idle(operator)
    authorities = cluster.authorities()
    assert "" not in authorities
    state = fleet.state()
    for number, (step, version) in enumerate(((upgrade, after), (go_back, before))):
        step(version)
        cluster.check_installed(version)
        check(version)
        fleet.check_untouched(state, "by the installation")
        assert cluster.authorities() == authorities, "no webhook loses its CA"
        operator = cluster.restart(installed=version is after)
        newcomers = Fleet(cluster.plane.api, f"newcomers-{number}")
        newcomers.create()
        newcomers.wait_complete()
        newcomers.wait_idle(operator)
        fleet.check_untouched(state, "by the operator that starts anew")
        assert cluster.authorities() == authorities
        assert "permission denied" not in operator.text() or version is before
