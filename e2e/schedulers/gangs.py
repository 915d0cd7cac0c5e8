"""Gang schedulers as processes on loopback, with their CRDs and the API of their PodGroups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import yaml

from e2e.cluster.build import PROGRAMS, module_folder
from e2e.cluster.components import ClusterOptions
from e2e.cluster.controlplane import ControlPlane
from e2e.cluster.daemons import Daemons
from e2e.cluster.places import binary
from e2e.schedulers.manifests import Json, install_crds, read

CONTROLLERS = "--controllers=+queue-controller,+pg-controller,+gc-controller"
"""Without those of Volcano's own jobs and of job flows, which are not installed."""


GATE = "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true,DRAWorkloadResourceClaims=true"

RETRY = "--pod-max-in-unschedulable-pods-duration=1s"
"""Coscheduling registers for no event when resources become free, so a gang that it has rejected is tried again only
after this time, 5 minutes by default. The scheduler looks for such pods every 30 seconds."""


class GangScheduler(ABC):
    """One gang scheduler beside a control plane."""

    name: str
    """The value of --gang-scheduler-name."""
    group: str
    """API version of its PodGroups."""
    options: ClassVar[ClusterOptions] = ClusterOptions()
    """The control plane that it needs, besides its extras."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.daemons = Daemons(plane.data / "gang", die_with_parent=True)
        self.daemons.data.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def install(self) -> None:
        """Creates the CRDs."""

    @abstractmethod
    def commands(self) -> Mapping[str, Sequence[str]]:
        """The command line of each process."""

    @abstractmethod
    def join(self, pod: Json, pod_group: str) -> None:
        """Makes a pod a member of a PodGroup."""

    def group_spec(self, members: int) -> Json:
        """The spec of a PodGroup of which so many pods start together."""
        return {"minMember": members}

    def start(self) -> None:
        for name, command in self.commands().items():
            self.daemons.start(name, command)

    def stop(self) -> None:
        for name in self.commands():
            self.daemons.stop(name)

    def describe(self) -> str:
        """Which processes run, with the ends of their logs."""
        lines = [f"{name}: pid {self.daemons.running(name)}\n{self.daemons.tail(name)}" for name in self.commands()]
        return "\n".join(lines)

    def _write(self, name: str, config: Json) -> Path:
        path = self.daemons.data / name
        path.write_text(yaml.safe_dump(config))
        return path


class Coscheduling(GangScheduler):
    """kube-scheduler with the plugin of scheduler-plugins, under a name of its own."""

    name = "scheduler-plugins-scheduler"
    group = "scheduling.x-k8s.io/v1alpha1"

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        self.module = module_folder(PROGRAMS["coscheduling"], "sigs.k8s.io/scheduler-plugins")

    def install(self) -> None:
        install_crds(self.plane.api, self.module / "config" / "crd" / "bases" / "scheduling.x-k8s.io_podgroups.yaml")

    def commands(self) -> Mapping[str, Sequence[str]]:
        (config,) = read(self.module / "manifests" / "coscheduling" / "scheduler-config.yaml")
        config["clientConnection"]["kubeconfig"] = str(self.plane.kubeconfig)
        for profile in config["profiles"]:
            profile["schedulerName"] = self.name
        path = self._write("coscheduling.yaml", config)
        return {"coscheduling": [str(binary("coscheduling")), f"--config={path}", "--secure-port=0", RETRY]}

    def join(self, pod: Json, pod_group: str) -> None:
        pod["spec"]["schedulerName"] = self.name
        pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": pod_group}


class Volcano(GangScheduler):
    """Volcano's scheduler and controller-manager, which maintains queues and the status of PodGroups."""

    name = "volcano"
    group = "scheduling.volcano.sh/v1beta1"

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__(plane)
        module = module_folder(PROGRAMS["volcano-scheduler"], "volcano.sh/volcano")
        self.chart = module / "installer" / "helm" / "chart" / "volcano"

    def install(self) -> None:
        install_crds(self.plane.api, *(self.chart / "crd" / "bases").glob("*.yaml"))

    def commands(self) -> Mapping[str, Sequence[str]]:
        config = self.chart / "config" / "volcano-scheduler-ci.conf"  # the shipped one with preemption
        access = [f"--kubeconfig={self.plane.kubeconfig}", "--leader-elect=false"]
        scheduler = [f"--scheduler-conf={config}", "--schedule-period=200ms", "--v=3"]
        return {
            "volcano-controller-manager": [str(binary("volcano-controller-manager")), *access, CONTROLLERS],
            "volcano-scheduler": [str(binary("volcano-scheduler")), *access, *scheduler],
        }

    def join(self, pod: Json, pod_group: str) -> None:
        pod["spec"]["schedulerName"] = self.name
        pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": pod_group}


class KubeScheduler(GangScheduler):
    """kube-scheduler 1.37 itself, with the API of Kubernetes."""

    name = "kube-scheduler"
    group = "scheduling.k8s.io/v1beta1"
    options = ClusterOptions(
        release="1.37",
        flags=(
            f"kube-apiserver={GATE}",
            f"kube-controller-manager={GATE}",
            "kube-apiserver=--runtime-config=scheduling.k8s.io/v1beta1=true",
        ),
    )

    def install(self) -> None:
        """Nothing to do: its kinds are part of Kubernetes."""

    def commands(self) -> Mapping[str, Sequence[str]]:
        access = [f"--kubeconfig={self.plane.kubeconfig}", "--leader-elect=false", "--secure-port=0"]
        return {"kube-scheduler": [str(binary("kube-scheduler", self.options.release)), *access, GATE]}

    def join(self, pod: Json, pod_group: str) -> None:
        pod["spec"]["schedulingGroup"] = {"podGroupName": pod_group}

    def group_spec(self, members: int) -> Json:
        return {"schedulingPolicy": {"gang": {"minCount": members}}}
