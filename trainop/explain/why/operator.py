"""Rules about the operator itself: that none acts on the job, or that it cannot."""

from __future__ import annotations

from collections.abc import Iterator

from trainop.explain.why.cause import Cause, Weight
from trainop.explain.why.evidence import Evidence, OperatorFacts
from trainop.explain.why.queue import left_to
from trainop.explain.why.words import span

UNTOUCHED_AFTER = 10.0
"""Seconds after which a job without any status has no operator that acts on it."""

CRD_FIELD = "lastFailure"
"""A field of the status that only this project's CRDs have."""


def find(seen: Evidence) -> Iterator[Cause]:
    """Why no operator acts on the job, and what the one that does lacks."""
    denied = seen.about("PermissionDenied")
    if denied:
        yield Cause(
            "OperatorDenied",
            "the operator lacks a permission",
            "grant it; the operator goes on by itself",
            (denied[0].message,),
            Weight.OPERATOR,
        )
    if not seen.status and not seen.finished and seen.age >= UNTOUCHED_AFTER and not left_to(seen):
        yield _untouched(seen)
    if seen.crd_fields is not None and seen.crd_fields and CRD_FIELD not in seen.crd_fields:
        yield Cause(
            "OldCrd",
            f"the CRD of {seen.kind} is that of another operator or an older release: it drops fields of the status",
            "apply manifests/crds of this release to see root causes and progress in the status",
        )


def _untouched(seen: Evidence) -> Cause:
    since = f"no operator has touched the job for {span(seen.age)}"
    if seen.operators is None:
        return Cause(
            "NoOperator",
            since,
            "you may not read Deployments; ask an administrator whether the operator runs and"
            f" watches this namespace and {seen.kind}",
            weight=Weight.OPERATOR,
        )
    if not seen.operators:
        return Cause(
            "NoOperator",
            f"{since}, and no Deployment of an operator was found",
            "install one: kubectl apply --server-side -k manifests/overlays/standalone",
            weight=Weight.OPERATOR,
        )
    reasons = [_reason(seen, each) for each in seen.operators]
    code, text, advice = next((each for each in reasons if each[0] == "OperatorIdle"), reasons[0])
    return Cause(code, f"{since}: {text}", advice, weight=Weight.OPERATOR)


def _reason(seen: Evidence, operator: OperatorFacts) -> tuple[str, str, str]:
    """Code, text and advice about one operator."""
    where = f"deployment {operator.namespace}/{operator.name}"
    logs = f"kubectl -n {operator.namespace} logs deployment/{operator.name}"
    if not operator.ready:
        return "OperatorDown", f"{where} has no ready pod", f"kubectl -n {operator.namespace} get pods; {logs}"
    if operator.schemes and seen.kind.lower() not in operator.schemes:
        return "KindDisabled", f"{where} does not handle {seen.kind}", f"add --enable-scheme={seen.kind} to its flags"
    namespace = str(seen.metadata.get("namespace", ""))
    if operator.watched and operator.watched != namespace:
        return (
            "OtherNamespace",
            f"{where} watches only the namespace {operator.watched}",
            f"create the job in {operator.watched}",
        )
    return "OperatorIdle", f"{where} runs, but does not act", f"look into its log: {logs}"
