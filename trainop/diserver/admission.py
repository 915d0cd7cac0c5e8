"""What the queue of a job has admitted besides its coordinator (docs/kueue.md), and what of a request goes beyond it.

The operator writes it to the coordinator's pod (`trainop.kinds.dijob.queueing`). A pod without it is of a job that the
operator does not queue, and nothing is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from trainop.diserver.bodies import Demand, Wanted
from trainop.diserver.replies import Refusal
from trainop.diserver.seen import ENDED, SeenPod
from trainop.engine.fields import as_object
from trainop.engine.queueing.placement import Placement
from trainop.kinds.dijob.names import ADMISSION, GPU, Role
from trainop.kinds.dijob.pods import Resources, main_place, template_of
from trainop.runtime import Json
from trainop.runtime.lowlevel import exact_amount

_NONE = Placement(0)
_decode = msgspec.json.Decoder(dict[str, Placement]).decode


def read_admission(coordinator: Json) -> Mapping[str, Placement] | None:
    """Role -> what its pods get; None if the job is not queued. Raises `Refusal` if the coordinator is being stopped,
    as when its job is evicted, or if a user has overwritten the annotation."""
    metadata = as_object(coordinator.get("metadata"))
    text = as_object(metadata.get("annotations")).get(ADMISSION)
    if text is None:
        return None
    if metadata.get("deletionTimestamp"):
        raise Refusal(400, f"coordinator {metadata.get('name')} is being deleted")
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise Refusal(400, f"annotation {ADMISSION} of {metadata.get('name')} cannot be read: {error}") from None


def check_admitted(demand: Demand, job: Json, admission: Mapping[str, Placement], pods: Iterable[SeenPod]) -> None:
    """Raises `Refusal` if the request asks for more than was admitted. `pods`: those of the job, as they are now."""
    living = Counter(pod.role for pod in pods if pod.phase not in ENDED)
    for role, wanted in ((Role.COLLECTOR, demand.collectors), (Role.LEARNER, demand.learners)):
        admitted = admission.get(role.value, _NONE).count
        if wanted.replicas and living[role] + wanted.replicas > admitted:
            raise Refusal(
                400,
                f"the queue has admitted {admitted} pods of role {role.value}, {living[role]} exist, and the request"
                f" asks for {wanted.replicas} more",
            )
        if wanted.replicas:
            _check_size(role, wanted, template_of(job, role) or {})


def _check_size(role: Role, wanted: Wanted, template: Json) -> None:
    """The queue counts pods as their template says."""
    if role is Role.LEARNER and wanted.gpus > 1:
        raise Refusal(400, "a job with a queue cannot have learners with more than one GPU: they are several pods")
    has = _resources_of(template)
    for name, asked, given in zip(Resources._fields, wanted.resources, has, strict=True):
        if asked and _amount(asked) > _amount(given):
            text = f"{name} {asked} for pods of role {role.value}, and the queue has admitted {given or 'none'}"
            raise Refusal(400, f"the request asks for {text}")


def _resources_of(template: Json) -> Resources:
    """What the main container of a template requests."""
    containers = as_object(template.get("spec")).get("containers")
    at = main_place(containers) if isinstance(containers, list) else None
    resources = as_object(containers[at].get("resources")) if containers and at is not None else {}
    both = {**as_object(resources.get("limits")), **as_object(resources.get("requests"))}
    return Resources(*(str(both.get(name) or "") for name in ("cpu", "memory", GPU)))


def _amount(quantity: str) -> float:
    """0 for none, and for what is no quantity, which the API server refuses."""
    try:
        return float(exact_amount(quantity))
    except ValueError:
        return 0.0
