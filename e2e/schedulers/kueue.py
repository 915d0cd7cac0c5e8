"""Kueue as a process on loopback, installed from the manifests of its module.

The API server calls its webhooks by service, as in a cluster. The service is an ExternalName of localhost, and the
port in the webhook configurations is the one that Kueue listens on. Kueue generates its certificates itself and stores
them in a Secret; in a cluster the kubelet mounts it, here its data are written to files.
"""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import yaml

from e2e.cluster.build import PROGRAMS, module_folder
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import Daemons, free_ports, wait_until
from e2e.cluster.places import ClusterError, binary
from e2e.schedulers.manifests import Json, create, install_crds, read

NAMESPACE = "kueue-system"
SERVICE = "kueue-webhook-service"
SECRET = "kueue-webhook-server-cert"
KINDS = ("pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob", "mpijob")
"""The integrations `kubeflow.org/KIND` of Kueue's own."""
GROUPS = ("kueue.x-k8s.io", "kubeflow.org")
"""API groups whose webhooks are installed; those of integrations that are not enabled would only slow requests down."""
EXTERNAL = {"DIJob": "DIJob.v1alpha1.diengine.opendilab.org"}
"""The names of external frameworks that are not of the group `kubeflow.org`."""
START_SECONDS = 120.0


class Kueue:
    """One Kueue beside a control plane. `external`: the kinds that the operator queues itself; Kueue integrates the
    rest of `KINDS`."""

    def __init__(self, plane: ControlPlane, external: Sequence[str] = ()) -> None:
        self.plane = plane
        self.external = external
        self.module = module_folder(PROGRAMS["kueue"], "sigs.k8s.io/kueue") / "config" / "components"
        self.daemons = Daemons(plane.data / "kueue", die_with_parent=True)
        self.webhook_port, self.probe_port = free_ports(2)

    @property
    def certificates(self) -> Path:
        return self.plane.data / "kueue" / "certificates"

    def install(self) -> None:
        """Creates CRDs, namespace, service, secret and webhook configurations."""
        api = self.plane.api
        install_crds(api, *(self.module / "crd" / "bases").glob("*.yaml"), conversions=self._conversions())
        create(api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        service = {"type": "ExternalName", "externalName": "localhost"}
        placed = {"name": SERVICE, "namespace": NAMESPACE}
        create(api, {"apiVersion": "v1", "kind": "Service", "metadata": placed, "spec": service})
        create(api, {"apiVersion": "v1", "kind": "Secret", "metadata": {**placed, "name": SECRET}})
        for document in read(self.module / "webhook" / "manifests.yaml"):
            create(api, self._webhooks(document))

    def start(self) -> None:
        """Starts the process and waits until it is ready."""
        self.certificates.mkdir(parents=True, exist_ok=True)
        config = self.plane.data / "kueue" / "config.yaml"
        config.write_text(yaml.safe_dump(self._configuration()))
        command = [str(binary("kueue")), f"--config={config}", f"--kubeconfig={self.plane.kubeconfig}"]
        self.daemons.start("kueue", [*command, "--zap-log-level=2"])
        if not wait_until(self._is_ready, START_SECONDS, every=0.1):
            raise ClusterError(f"Kueue did not get ready:\n{self.daemons.tail('kueue')}")

    def stop(self) -> None:
        self.daemons.stop("kueue")

    def _is_ready(self) -> bool:
        if self.daemons.running("kueue") is None:
            raise ClusterError(f"Kueue has ended:\n{self.daemons.tail('kueue')}")
        self._mount_certificates()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probe_port}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _mount_certificates(self) -> None:
        """Writes the Secret's data to files, as a kubelet does with a mounted Secret."""
        secret = self.plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}").body
        for name, data in secret.get("data", {}).items():
            (self.certificates / name).write_bytes(base64.b64decode(data))

    def _conversions(self) -> dict[str, Json]:
        """CRD -> the conversion webhook that Kueue's kustomization adds."""
        folder = self.module / "crd"
        (kustomization,) = read(folder / "kustomization.yaml")
        found = {}
        for each in kustomization["patches"]:
            (patch,) = read(folder / each["path"])
            found[patch["metadata"]["name"]] = patch["spec"]["conversion"]
        for conversion in found.values():
            self._address(conversion["webhook"]["clientConfig"]["service"])
        return found

    def _address(self, service: Json) -> None:
        service.update(name=SERVICE, namespace=NAMESPACE, port=self.webhook_port)

    def _configuration(self) -> Json:
        """The configuration that the module ships, with addresses of loopback and the integrations under test."""
        (config,) = read(self.module / "manager" / "controller_manager_config.yaml")
        return {
            **config,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self.probe_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self.webhook_port, "certDir": str(self.certificates)},
            "leaderElection": {"leaderElect": False},
            "integrations": self._integrations(),
            # the condition PodsReady of a Workload follows the job's condition Running
            "waitForPodsReady": {"timeout": "10m", "blockAdmission": False},
            # its port is not configurable
            "featureGates": {"VisibilityOnDemand": False},
        }

    def _integrations(self) -> Json:
        """Of batch Jobs too, which must leave the launchers of queued MPIJobs alone."""
        external = [kind.lower() for kind in self.external]
        own = [f"kubeflow.org/{kind}" for kind in KINDS if kind not in external]
        names = [EXTERNAL.get(kind, f"{kind}.v1.kubeflow.org") for kind in self.external]
        return {"frameworks": [*own, "batch/job"], **({"externalFrameworks": names} if names else {})}

    def _webhooks(self, document: Json) -> Json:
        """A webhook configuration as Kueue's kustomization renders it, with only the webhooks that are needed."""
        external = [f"{kind.lower()}s" for kind in self.external]
        kept = [hook for hook in document["webhooks"] if self._is_needed(hook)]
        kept = [
            hook
            for hook in kept
            if not any(plural in external for rule in hook["rules"] for plural in rule["resources"])
        ]
        for hook in kept:
            self._address(hook["clientConfig"]["service"])
        name = f"kueue-{document['metadata']['name']}"
        return {**document, "metadata": {"name": name}, "webhooks": kept}

    @staticmethod
    def _is_needed(hook: Json) -> bool:
        return all(group in GROUPS for rule in hook["rules"] for group in rule["apiGroups"])
