"""The gang scheduler of `--gang-scheduler-name`: one row for each kind of PodGroup, with what its pods need.

Sources: training-operator `cmd/training-operator.v1/main.go`, `pkg/controller.v1/control/podgroup_control.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainop.runtime import Json, Resource

VOLCANO_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
PLUGIN_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
KUBE_GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")
KUBE_WORKLOADS = Resource("scheduling.k8s.io", "v1beta1", "workloads", "Workload")
GROUP_NAME = "scheduling.k8s.io/group-name"
TASK_SPEC = "volcano.sh/task-spec"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


@dataclass(frozen=True, slots=True)
class GangScheduler:
    """A scheduler that schedules the pods of a PodGroup together."""

    name: str
    """`schedulerName` of the pods; empty: as in the template."""
    groups: Resource
    """Its PodGroups."""
    fields: tuple[str, ...]
    """The fields of the PodGroup's `spec` that the operator manages."""
    least_members: int = 0
    """The smallest number of members that it accepts."""
    waiting_phases: frozenset[str] = frozenset()
    """The phases of a PodGroup, "" being none, in which no pods are created. Without any, pods are created together
    with their PodGroup."""
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Annotations of pods: format strings with `group` and `task`."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Labels of pods, likewise."""
    workloads: Resource | None = None
    """The Workloads of whose templates its PodGroups are made. None: PodGroups stand alone."""
    absence: str = ""
    """What to do if the API server does not serve its PodGroups; empty: their CustomResourceDefinition is missing."""

    @property
    def in_tree(self) -> bool:
        """Whether it is kube-scheduler itself, with the API of Kubernetes."""
        return self.workloads is not None

    def pod_fields(self, group: str, given: Json, priority_class: str = "") -> Json:
        """The fields that the `spec` of a pod of the PodGroup needs besides those that are `given`. kube-scheduler
        refuses a group whose pods have another priority than the group, so that they get its `priority_class`."""
        wanted: Json = {"schedulerName": self.name}
        if self.in_tree:
            wanted = {"schedulingGroup": {"podGroupName": group}, "priorityClassName": priority_class}
        return {name: value for name, value in wanted.items() if value and not given.get(name)}

    def shape(self, fields: Json) -> Json:
        """Managed fields of a PodGroup, by their names in `fields`, as its `spec` has them."""
        return {"schedulingPolicy": {"gang": {"minCount": fields["minMember"]}}} if self.in_tree else fields

    def pod_annotations(self, group: str, task: str = "") -> dict[str, str]:
        """The annotations of a pod of the PodGroup; `task` is the replica type in lower case, empty if the scheduler
        is not told."""
        texts = {name: text.format(group=group, task=task) for name, text in self.annotations.items()}
        return {name: text for name, text in texts.items() if text}

    def pod_labels(self, group: str) -> dict[str, str]:
        """The labels of a pod of the PodGroup."""
        return {name: text.format(group=group) for name, text in self.labels.items()}

    def names_another(self, template: object) -> bool:
        """Whether a pod template asks for another scheduler, or with kube-scheduler for another PodGroup. It is kept,
        and the pod is not scheduled with the group."""
        spec = template.get("spec") if isinstance(template, dict) else None
        given = spec if isinstance(spec, dict) else {}
        if self.in_tree:
            return bool(given.get("schedulingGroup"))
        return bool(given.get("schedulerName")) and given["schedulerName"] != self.name


VOLCANO = GangScheduler(
    "volcano",
    VOLCANO_GROUPS,
    fields=("minMember", "queue", "priorityClassName", "minResources"),
    waiting_phases=frozenset({"", "Pending"}),  # no room yet (upstream `DelayPodCreationDueToPodGroup`)
    annotations={GROUP_NAME: "{group}", TASK_SPEC: "{task}"},
)
COSCHEDULING = GangScheduler(
    "",  # any: that of the flag
    PLUGIN_GROUPS,
    fields=("minMember", "scheduleTimeoutSeconds", "minResources"),
    least_members=1,
    labels={POD_GROUP_LABEL: "{group}"},
)
"""A scheduler with the coscheduling plugin of scheduler-plugins."""

KUBE = GangScheduler(
    "",
    KUBE_GROUPS,
    fields=("minMember",),
    least_members=1,
    workloads=KUBE_WORKLOADS,
    absence="turn on the feature gate GenericWorkload and --runtime-config=scheduling.k8s.io/v1beta1=true in Kubernetes"
    " 1.37 or later; the alpha versions in 1.35 and 1.36 are not supported",
)
"""kube-scheduler itself: any of its profiles that the templates name."""
KUBE_NAME = "kube-scheduler"
"""The value of the flag that means it."""

BACK_ENDS = (VOLCANO, COSCHEDULING, KUBE)


def choose_scheduler(flag: str) -> GangScheduler | None:
    """The scheduler that the value of the flag means; None: gang scheduling is off. Volcano is recognized in any case,
    `kube-scheduler` as it is written; any other name is that of a scheduler with the coscheduling plugin of
    scheduler-plugins."""
    if flag in ("", "None"):
        return None
    if flag == KUBE_NAME:
        return KUBE
    return VOLCANO if flag.lower() == VOLCANO.name else replace(COSCHEDULING, name=flag)
