"""The gang scheduler of `--gang-scheduler-name`, and what pods need so that it schedules them together.

Sources: training-operator `cmd/training-operator.v1/main.go`, `pkg/controller.v1/control/podgroup_control.go`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainop.runtime import Resource

VOLCANO = "volcano"
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
    """Its PodGroups: those of Volcano, or those of scheduler-plugins."""

    @property
    def is_volcano(self) -> bool:
        return self.groups == VOLCANO_GROUPS

    def pod_annotations(self, group: str, task: str) -> dict[str, str]:
        """The annotations of a pod of the PodGroup; `task` is the replica type in lower case."""
        return {GROUP_NAME: group, TASK_SPEC: task} if self.is_volcano else {}

    def pod_labels(self, group: str) -> dict[str, str]:
        """The labels of a pod of the PodGroup."""
        return {} if self.is_volcano else {POD_GROUP_LABEL: group}

    def names_another(self, template: object) -> bool:
        """Whether a pod template asks for another scheduler. It is kept, and the pod is not scheduled with the
        group."""
        spec = template.get("spec") if isinstance(template, dict) else None
        name = spec.get("schedulerName") if isinstance(spec, dict) else None
        return bool(name) and name != self.name


def choose_scheduler(flag: str) -> GangScheduler | None:
    """The scheduler that the value of the flag means; None: gang scheduling is off. Volcano is recognized in any case;
    any other name is that of a scheduler with the coscheduling plugin of scheduler-plugins."""
    if flag in ("", "None"):
        return None
    if flag.lower() == VOLCANO:
        return GangScheduler(VOLCANO, VOLCANO_GROUPS)
    return GangScheduler(flag, PLUGIN_GROUPS)
