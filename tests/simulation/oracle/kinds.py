"""The kinds of jobs as the specifications describe them: the tables of frameworks-v1 §1, §5 and §7 and job-engine §1.8.

The modules of this folder import nothing from the product, so that they cannot share an error with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = dict[str, Any]
"""An object as the API server stores it."""

Slot: TypeAlias = tuple[str, int]
"""Replica type in lower case, and index."""

LABELS = "training.kubeflow.org/"
ANNOTATIONS = "trainop.kubeflow.org/"
OURS = "kubeflow.org/training-operator"
"""The value of managedBy that means this operator, as does none."""


class Kind(NamedTuple):
    """What distinguishes one kind of job from the others."""

    field: str
    controller: str
    container: str
    port_name: str
    port: int
    policy: str
    """The default restartPolicy."""
    deciding: tuple[str, ...]
    """The first of these replica types that the job has decides whether it runs and whether it has succeeded."""
    scale: bool = False
    """replicaStatuses carry the selector of the scale subresource."""


KINDS: Mapping[str, Kind] = {
    "TFJob": Kind(
        "tfReplicaSpecs", "tfjob-controller", "tensorflow", "tfjob-port", 2222, "Never", ("Chief", "Master", "Worker")
    ),
    "PyTorchJob": Kind(
        "pytorchReplicaSpecs",
        "pytorchjob-controller",
        "pytorch",
        "pytorchjob-port",
        23456,
        "OnFailure",
        ("Master", "Worker"),
        scale=True,
    ),
    "XGBoostJob": Kind(
        "xgbReplicaSpecs", "xgboostjob-controller", "xgboost", "xgboostjob-port", 9999, "Never", ("Master",)
    ),
    "PaddleJob": Kind(
        "paddleReplicaSpecs",
        "paddlejob-controller",
        "paddle",
        "master",
        36543,
        "OnFailure",
        ("Master", "Worker"),
        scale=True,
    ),
    "JAXJob": Kind(
        "jaxReplicaSpecs", "jaxjob-controller", "jax", "jaxjob-port", 6666, "Never", ("Worker",), scale=True
    ),
    "MXJob": Kind("mxReplicaSpecs", "mxjob-controller", "mxnet", "mxjob-port", 9091, "Never", ("Scheduler", "Tuner")),
}


class Job:
    """One version of one job, read with the defaults of the specification."""

    def __init__(self, value: Json) -> None:
        self.value = value
        metadata = value["metadata"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self.uid: str = metadata["uid"]
        self.annotations: Mapping[str, str] = metadata.get("annotations") or {}
        self.terminating = bool(metadata.get("deletionTimestamp"))
        self.kind_name: str = value["kind"]
        self.kind = KINDS[self.kind_name]
        self.spec: Json = value["spec"]
        self.policy: Json = self.spec.get("runPolicy") or {}
        self.roles: Mapping[str, Json] = self.spec[self.kind.field]
        given: Json = value.get("status") or {}
        self.status = {name: field for name, field in given.items() if name != "trainerStatus"}
        """Without what the pods report, which is written at any time (`reports.py`)."""
        found: list[Json] = self.status.get("conditions") or []
        self.conditions = [each for each in found if each["type"] != "Waiting"]
        """But for Waiting, which stands first and has rules of its own (standstill.py)."""

    # What the spec asks for -------------------------------------------------------------------------------------------

    def replicas(self, role: str) -> int:
        return int(self.roles[role].get("replicas", 1)) if role in self.roles else 0

    @property
    def total(self) -> int:
        return sum(self.replicas(role) for role in self.roles)

    def slots(self) -> Iterator[Slot]:
        for role in self.roles:
            for index in range(self.replicas(role)):
                yield role.lower(), index

    def has(self, slot: Slot | None) -> bool:
        return slot is not None and slot[1] < self.replicas(self.role_of(slot))

    def role_of(self, slot: Slot) -> str:
        """The type as the spec spells it; as the label does if the spec does not have it."""
        return next((role for role in self.roles if role.lower() == slot[0]), slot[0])

    def policy_of(self, slot: Slot) -> str:
        return str(self.roles.get(self.role_of(slot), {}).get("restartPolicy") or self.kind.policy)

    def extension(self, name: str, default: str = "") -> str:
        return self.annotations.get(ANNOTATIONS + name, default)

    @property
    def scope(self) -> str:
        return _find_word(self.extension("restart-scope"), ("pod", "role", "job"), "pod")

    @property
    def together(self) -> bool:
        """The disruption of one pod ends all (docs/survive.md)."""
        return self.extension("on-disruption") == "checkpoint-all"

    @property
    def grace(self) -> int:
        """The least grace period of the pods in seconds; 0: that of their template."""
        found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", self.extension("checkpoint-grace"))
        hours, minutes, seconds = (int(number or 0) for number in found.groups()) if found else (0, 0, 0)
        return min(3600 * hours + 60 * minutes + seconds, 3600)

    @property
    def saves(self) -> bool:
        """Programs save when they are asked to end, so that their exit code 0 is no success then."""
        return bool(self.together or self.grace)

    @property
    def service_mode(self) -> str:
        """What the user asks for; pods keep the mode that they were created with."""
        return _find_word(self.extension("service-mode"), ("replica", "leader", "job"), "replica")

    @property
    def shared_service(self) -> str:
        """The name of the service of mode job."""
        return f"{self.name}-pods"

    @property
    def clean_pod_policy(self) -> str:
        given = self.policy.get("cleanPodPolicy")
        return "All" if given == "" else _find_word(given or "", ("None", "Running", "All"), "None")

    @property
    def backoff_limit(self) -> int | None:
        limit = self.policy.get("backoffLimit")
        return limit if limit is not None and limit >= 0 else None

    @property
    def suspended(self) -> bool:
        return bool(self.policy.get("suspend"))

    @property
    def foreign(self) -> bool:
        """Another controller manages it."""
        return self.policy.get("managedBy") not in {None, OURS}

    @property
    def deciding(self) -> str:
        """The replica type whose state decides that of the job, or an empty string. Workers of an MXJob without a
        server and scheduler decide (docs/kinds/mxjob.md)."""
        found = next((role for role in self.kind.deciding if self.replicas(role)), "")
        if not found and self.kind_name == "MXJob" and self.replicas("Worker") and not self.replicas("Server"):
            return "Worker"
        return found

    def is_master(self, slot: Slot) -> bool:
        """The pod bears `job-role: master` (frameworks-v1 §5)."""
        role, index = slot
        match self.kind_name:
            case "TFJob":
                chiefs = {"chief", "master"} & {name.lower() for name in self.roles}
                return role in chiefs if chiefs else slot == ("worker", 0)
            case "PyTorchJob":
                return role == "master" if "Master" in self.roles else slot == ("worker", 0)
            case "JAXJob":
                return index == 0
            case "MXJob":
                return role == "server"
        return role == "master"

    def serves(self, slot: Slot) -> bool:
        """The slot has a service of its own in the modes replica and leader (design 8, docs/annotations.md)."""
        if self.service_mode != "leader" or self.kind_name in {"TFJob", "MXJob"}:
            return True
        if self.kind_name == "PaddleJob":
            return slot == ("master" if "Master" in self.roles else "worker", 0)
        return self.is_master(slot)

    # Status -----------------------------------------------------------------------------------------------------------

    def find(self, type_: str) -> Json | None:
        return next((each for each in self.conditions if each["type"] == type_), None)

    def is_true(self, type_: str) -> bool:
        found = self.find(type_)
        return found is not None and found["status"] == "True"

    @property
    def finished(self) -> bool:
        return self.is_true("Succeeded") or self.is_true("Failed")

    def message(self, type_: str) -> str:
        """Upstream's part of the message, without the root cause behind it."""
        found = self.find(type_)
        return without_cause(str(found["message"])) if found else ""


def without_cause(text: str) -> str:
    """The text of a condition up to the words for the root cause. The full stop between them belongs to them if
    upstream's text has none; here it is always dropped."""
    for mark in (" First failure: ", " No replica had failed: ", " It is not known how "):
        before, found, _ = text.partition(mark)
        if found:
            return before.removesuffix(".")
    return text


def _find_word(given: str, words: tuple[str, ...], default: str) -> str:
    """A word in its right case, or the default for an unknown one (design 5)."""
    return next((word for word in words if word.lower() == given.lower()), default)


def slot_of(child: Json) -> Slot | None:
    """What the labels of a pod or service say; None if they name no slot."""
    labels = child["metadata"].get("labels") or {}
    role, index = labels.get(LABELS + "replica-type"), labels.get(LABELS + "replica-index", "")
    return (role, int(index)) if role and index.isdecimal() else None


def controller_of(value: Json) -> Json | None:
    owners = value["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def owner_uid(value: Json) -> str:
    owner = controller_of(value)
    return str(owner["uid"]) if owner else ""


def phase_of(pod: Json) -> str:
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminating(value: Json) -> bool:
    return bool(value["metadata"].get("deletionTimestamp"))
