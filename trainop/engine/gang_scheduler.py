"""The gang scheduler of `--gang-scheduler-name`: one row for each kind of PodGroup, with what its pods need.

Sources: training-operator `cmd/training-operator.v1/main.go`, `pkg/controller.v1/control/podgroup_control.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainop.runtime import Resource

VOLCANO_GROUPS = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
PLUGIN_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")
GROUP_NAME = "scheduling.k8s.io/group-name"
TASK_SPEC = "volcano.sh/task-spec"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


@dataclass(frozen=True, slots=True)
class GangScheduler:
    """A scheduler that schedules the pods of a PodGroup together."""

    name: str
    """`schedulerName` of the pods."""
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

    def pod_annotations(self, group: str, task: str = "") -> dict[str, str]:
        """The annotations of a pod of the PodGroup; `task` is the replica type in lower case, empty if the scheduler
        is not told."""
        texts = {name: text.format(group=group, task=task) for name, text in self.annotations.items()}
        return {name: text for name, text in texts.items() if text}

    def pod_labels(self, group: str) -> dict[str, str]:
        """The labels of a pod of the PodGroup."""
        return {name: text.format(group=group) for name, text in self.labels.items()}

    def names_another(self, template: object) -> bool:
        """Whether a pod template asks for another scheduler. It is kept, and the pod is not scheduled with the
        group."""
        spec = template.get("spec") if isinstance(template, dict) else None
        name = spec.get("schedulerName") if isinstance(spec, dict) else None
        return bool(name) and name != self.name


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

BACK_ENDS = (VOLCANO, COSCHEDULING)


def choose_scheduler(flag: str) -> GangScheduler | None:
    """The scheduler that the value of the flag means; None: gang scheduling is off. Volcano is recognized in any case;
    any other name is that of a scheduler with the coscheduling plugin of scheduler-plugins."""
    if flag in ("", "None"):
        return None
    return VOLCANO if flag.lower() == VOLCANO.name else replace(COSCHEDULING, name=flag)
