"""What the API server says when it refuses a pod or another object of a job, and what that means."""

from __future__ import annotations

import re
from typing import NamedTuple


class Refusal(NamedTuple):
    """A kind of refusal."""

    pattern: re.Pattern[str]
    """Found in the message of the API server."""
    code: str
    text: str
    next: str


def _refusal(pattern: str, code: str, text: str, next_: str) -> Refusal:
    return Refusal(re.compile(pattern, re.IGNORECASE), code, text, next_)


REFUSALS = (
    _refusal(
        "exceeded quota",
        "QuotaExceeded",
        "the namespace's quota has no room for the pods",
        "wait for other pods to end, ask for less, or have the ResourceQuota raised",
    ),
    _refusal(
        "violates PodSecurity",
        "PodSecurity",
        "the namespace's pod security level refuses the pods",
        "change the pod template as the message says, or the label pod-security.kubernetes.io/enforce of the namespace",
    ),
    _refusal(
        "admission webhook .* denied|failed calling webhook",
        "WebhookRefuses",
        "an admission webhook refuses the pods",
        "its message says what it wants; ask who runs it",
    ),
    _refusal(
        "error looking up service account|serviceaccount .* not found",
        "AccountMissing",
        "the pods' service account does not exist",
        "create it, or correct serviceAccountName",
    ),
    _refusal(
        "no PriorityClass with name",
        "PriorityMissing",
        "the pods' priority class does not exist",
        "correct priorityClassName, or create the PriorityClass",
    ),
    _refusal(
        "LimitRange|(?:min|max)imum (?:cpu|memory) usage",
        "LimitRange",
        "the namespace's LimitRange refuses the pods",
        "keep requests and limits within it",
    ),
    _refusal(
        "namespace .* is being terminated|because it is being terminated",
        "NamespaceEnds",
        "the namespace is being deleted",
        "create the job in another namespace",
    ),
    _refusal(
        "already exists",
        "NameTaken",
        "an object of somebody else has the name that a pod or service needs",
        "delete that object, or give the job another name",
    ),
)
"""The first that matches counts."""

ADVICE = (
    ("persistentvolumeclaim", "create the PersistentVolumeClaim that the message names, or correct the volume"),
    ("unbound immediate", "the claim has no volume yet: kubectl get pvc, and look at its storage class"),
    ("nvidia.com/gpu", "ask for fewer GPUs per pod, wait until some are free, or check the nodes' device plugin"),
    ("insufficient", "ask for less, wait until nodes have room, or add nodes"),
    ("untolerated taint", "add a toleration for the taint, or use other nodes"),
    ("affinity/selector", "correct nodeSelector or affinity: no node has these labels"),
    ("node selector", "correct nodeSelector or affinity: no node has these labels"),
    ("topology spread", "relax topologySpreadConstraints"),
    ("no nodes available", "the cluster has no node that takes pods"),
    ("free ports", "another pod uses the host port on these nodes"),
)
"""Words of a scheduler's message, in lower case -> what to do."""


def advise(message: str) -> str:
    """What to do about the message of a scheduler."""
    lowered = message.lower()
    found = [advice for word, advice in ADVICE if word in lowered]
    if "nvidia.com/gpu" in lowered:
        found = [advice for advice in found if not advice.startswith("ask for less")]
    return "; ".join(found[:2]) or "change what the scheduler's message names"
