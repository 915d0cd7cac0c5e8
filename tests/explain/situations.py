"""Situations of jobs as evidence, and the cause that a person would name. The causes come from what Kubernetes, Kueue
and the gang schedulers document of these situations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from trainop.explain.why import Evidence, PodFacts, State, read_pod
from trainop.explain.why.evidence import EventFacts, OperatorFacts

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
LABELS = "training.kubeflow.org/"
Json = dict[str, Any]


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(
    role: str = "worker",
    index: int = 0,
    phase: str = "Pending",
    *,
    node: str = "node-a",
    age: float = 600,
    conditions: tuple[Json, ...] = (),
    containers: tuple[Json, ...] = (),
    init: tuple[Json, ...] = (),
    spec: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> PodFacts:
    """A pod as the API server has it; `containers` and `init` are statuses, with the names of the spec's containers."""
    names = [each["name"] for each in containers] or ["pytorch"]
    return read_pod(
        {
            "metadata": {
                "name": f"j-{role}-{index}",
                "labels": {f"{LABELS}replica-type": role, f"{LABELS}replica-index": str(index)},
                "creationTimestamp": ago(age),
                **metadata,
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": name, "image": "repo/image:tag"} for name in names],
                "initContainers": [{"name": each["name"], "image": "init:1"} for each in init],
                **(spec or {}),
            },
            "status": {
                "phase": phase,
                "conditions": list(conditions),
                "containerStatuses": list(containers),
                "initContainerStatuses": list(init),
            },
        }
    )


def waiting(reason: str, message: str = "", name: str = "pytorch", **fields: Any) -> Json:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}, **fields}


def running(name: str = "pytorch", **fields: Any) -> Json:
    return {"name": name, "state": {"running": {"startedAt": ago(300)}}, **fields}


def ended(code: int, reason: str = "Error", message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": ago(60)}}


READY = {"type": "Ready", "status": "True"}
UP = [pod("master", 0, "Running", conditions=(READY,), containers=(running(),)),
      pod("worker", 0, "Running", conditions=(READY,), containers=(running(),))]  # fmt: skip


def unscheduled(message: str, index: int = 0, reason: str = "Unschedulable", **fields: Any) -> PodFacts:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod("worker", index, node="", conditions=(condition,), **fields)


def event(reason: str, message: str, kind: str = "PyTorchJob", type_: str = "Warning", age: float = 30) -> EventFacts:
    return EventFacts(type_, reason, message, kind, "j", NOW - timedelta(seconds=age))


def condition(type_: str, reason: str = "", message: str = "", status: str = "True") -> Json:
    return {"type": type_, "status": status, "reason": reason or f"PyTorchJob{type_}", "message": message}


CREATED = condition("Created", message="PyTorchJob j is created.")


def job(
    *conditions: Json,
    policy: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    age: float = 600,
    status: Mapping[str, Any] | None = None,
    **metadata: Any,
) -> Json:
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": "j",
            "namespace": "team",
            "uid": "uid-j",
            "creationTimestamp": ago(age),
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            **metadata,
        },
        "spec": {"runPolicy": dict(policy or {}), "pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}},
        "status": {"conditions": list(conditions) or [CREATED], **(status or {})},
    }


def seen(job_: Json | None = None, *pods: PodFacts, kind: str = "PyTorchJob", **fields: Any) -> Evidence:
    return Evidence(kind=kind, job=job_ or job(), now=NOW, pods=pods, **fields)


def untouched(**fields: Any) -> Evidence:
    """A job that no operator has touched."""
    raw = job()
    del raw["status"]
    return Evidence(kind="PyTorchJob", job=raw, now=NOW, **fields)


def failed(message: str, failure: Json | None = None, reason: str = "PyTorchJobFailed", **fields: Any) -> Evidence:
    status = {"lastFailure": failure} if failure else {}
    return seen(job(CREATED, condition("Failed", reason, message), status=status, **fields))


def failure(**fields: Any) -> Json:
    known = {"role": "Worker", "index": 1, "rank": 2, "pod": "j-worker-1", "node": "node-a", "exitCode": 1}
    return {**known, "reason": "Error", "attempt": 1, "time": ago(60), **fields}


def restarts(failures: int = 0, disruptions: int = 0, **fields: Any) -> dict[str, str]:
    history = {"job": "uid-j", "failures": failures, "disruptions": disruptions, **fields}
    return {"trainop.kubeflow.org/restarts": json.dumps(history)}


def queued(conditions: list[Json], **fields: Any) -> Evidence:
    """A job in a queue of Kueue, with its Workload."""
    workload = {
        "metadata": {"name": "w"},
        "spec": fields.pop("spec", {}),
        "status": {"conditions": conditions, **fields},
    }
    held = job(condition("Suspended"), policy={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "gpu"})
    return seen(held, workloads=(workload,))


def group(phase: str, message: str = "") -> Json:
    conditions = [{"type": "Unschedulable", "status": "True", "message": message}] if message else []
    return {"spec": {"minMember": 4, "queue": "default"}, "status": {"phase": phase, "conditions": conditions}}


def operator(**fields: Any) -> OperatorFacts:
    return replace(OperatorFacts("training-operator", "kubeflow", ready=1), **fields)


def node(ready: str) -> Json:
    return {"status": {"conditions": [{"type": "Ready", "status": ready}]}}


class Situation(NamedTuple):
    """Evidence, and what must be said first: the state, the code, and words of the text, evidence or next step."""

    seen: Evidence
    state: State
    code: str
    words: tuple[str, ...] = ()


W, F, T, R, S = State.WAITING, State.FAILED, State.TROUBLED, State.RUNNING, State.SUCCEEDED
GPU = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu. preemption: 0/12 nodes are available: 12 No victims."
MIXED = "0/12 nodes are available: 3 node(s) didn't match Pod's node affinity/selector, 9 Insufficient nvidia.com/gpu."
TAINT = "0/3 nodes are available: 3 node(s) had untolerated taint {gpu: true}. preemption: not eligible."
STUCK: Json = {"deletionTimestamp": ago(300), "deletionGracePeriodSeconds": 30}

SITUATIONS: dict[str, Situation] = {
    # the end
    "succeeded": Situation(
        seen(job(condition("Succeeded"), status={"startTime": ago(400), "completionTime": ago(100)})),
        S,
        "Succeeded",
        ("after 5 min",),
    ),
    "a replica raised an exception": Situation(
        failed("PyTorchJob j is failed because 1 Worker replica(s) failed.", failure(log=["ValueError: bad shard"])),
        F,
        "Failed",
        (
            "Worker 1 (rank 2, pod j-worker-1 on node node-a) exited with code 1",
            "ValueError: bad shard",
            "trainop logs",
        ),
    ),
    "others failed after it": Situation(
        failed("m", failure(failedAfter=3)), F, "Failed", ("3 other replicas failed after it",)
    ),
    "out of memory": Situation(
        failed("m", failure(exitCode=137, reason="OOMKilled")),
        F,
        "OutOfMemory",
        ("OOMKilled", "resources.limits.memory"),
    ),
    "evicted without a restart policy": Situation(
        failed("m", failure(exitCode=None, reason="Evicted", message="The node was low on resource: memory.")),
        F,
        "Failed",
        ("was evicted from its node", "restartPolicy OnFailure"),
    ),
    "the command does not exist": Situation(
        failed("m", failure(exitCode=127)), F, "Failed", ("exited with code 127", "check command and image")
    ),
    "the command is not executable": Situation(
        failed("m", failure(exitCode=126)), F, "Failed", ("check its permissions",)
    ),
    "killed": Situation(failed("m", failure(exitCode=137)), F, "Failed", ("SIGKILL", "node under memory pressure")),
    "crashed in native code": Situation(failed("m", failure(exitCode=139)), F, "Failed", ("SIGSEGV", "shared memory")),
    "restarts used up": Situation(
        failed("Job j has failed because it has reached the specified backoff limit", failure(attempt=4)),
        F,
        "Failed",
        ("used up its restarts (runPolicy.backoffLimit)", "after 3 restarts"),
    ),
    "disrupted too often": Situation(
        failed("Job j has failed because it has reached the specified infra restart limit", failure(reason="NodeLost")),
        F,
        "Failed",
        ("disrupted too often", "was lost with its node"),
    ),
    "deadline": Situation(
        failed("Job j has failed because it was active longer than specified deadline"),
        F,
        "Failed",
        ("activeDeadlineSeconds",),
    ),
    "invalid": Situation(
        failed(
            "PyTorchJob failed validation because spec.pytorchReplicaSpecs: Required value",
            reason="PyTorchJobFailedValidation",
        ),
        F,
        "Invalid",
        ("no pod was created", "spec.pytorchReplicaSpecs", "correct the field"),
    ),
    "the first pod was refused": Situation(
        failed(
            'PyTorchJob failed validation because pods "j" is forbidden: violates PodSecurity "restricted:latest"',
            reason="PyTorchJobFailedValidation",
        ),
        F,
        "PodSecurity",
        ("pod-security.kubernetes.io/enforce",),
    ),
    "failed under an older operator": Situation(failed("It failed."), F, "Failed", ("the job failed", "It failed.")),
    "a DIJob failed": Situation(
        Evidence(kind="DIJob", job={"metadata": {"name": "j"}, "status": {"phase": "Failed"}}, now=NOW), F, "Failed"
    ),
    "a name could not be resolved": Situation(
        failed("m", failure(log=["socket.gaierror: [Errno -2] Name or service not known"])),
        F,
        "Failed",
        ("Name or service",),
    ),
    "being deleted": Situation(seen(job(deletionTimestamp=ago(10))), W, "Deleting", ("is being deleted",)),
    "a finalizer holds the deletion": Situation(
        seen(job(deletionTimestamp=ago(10), finalizers=["example.com/backup"])),
        W,
        "Deleting",
        ("waits for the finalizer example.com/backup",),
    ),
    # held
    "suspended": Situation(
        seen(job(condition("Suspended"), policy={"suspend": True})),
        W,
        "Suspended",
        ("spec.runPolicy.suspend to false",),
    ),
    "runs without a misspelt field": Situation(
        seen(
            job(
                CREATED,
                {"type": "TemplateValid", "status": "False", "reason": "UnknownFields", "message": "no: resource"},
            ),
            pod(phase="Running"),
        ),
        T,
        "UnknownFields",
        ("no: resource", "trainop check"),
    ),
    "managed elsewhere": Situation(
        seen(job(policy={"managedBy": "example.com/other"})),
        W,
        "ManagedElsewhere",
        ("left to the controller example.com/other",),
    ),
    "on a worker cluster of MultiKueue": Situation(
        seen(job(policy={"managedBy": "kueue.x-k8s.io/multikueue"})),
        W,
        "ManagedElsewhere",
        ("worker cluster of MultiKueue",),
    ),
    "waits for quota": Situation(
        queued(
            [
                {
                    "type": "QuotaReserved",
                    "status": "False",
                    "message": "insufficient unused quota for nvidia.com/gpu, 8 more needed",
                }
            ]
        ),
        W,
        "QueueWaiting",
        ("quota in the queue gpu", "8 more needed"),
    ),
    "the queue is missing": Situation(
        seen(job(policy={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "gpus"}), queues=("gpu", "cpu")),
        W,
        "QueueMissing",
        ("gpus, which does not exist", "there are: gpu, cpu"),
    ),
    "Kueue ignores the kind": Situation(
        seen(job(policy={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "gpu"}), queues=("gpu",)),
        W,
        "QueueIgnoresJob",
        ("made no Workload", "lists PyTorchJob among its integrations"),
    ),
    "Kueue cannot be read": Situation(
        seen(
            job(policy={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "gpu"}), unread=("workloads: forbidden",)
        ),
        W,
        "QueueIgnoresJob",
    ),
    "preempted in the queue": Situation(
        queued(
            [
                {
                    "type": "Preempted",
                    "status": "True",
                    "message": "Preempted to accommodate a workload of higher priority",
                }
            ]
        ),
        W,
        "QueuePreempted",
        ("put it back into the queue gpu", "higher priority"),
    ),
    "evicted by Kueue": Situation(
        queued([{"type": "Evicted", "status": "True", "message": "Exceeded the PodsReady timeout"}]),
        W,
        "QueuePreempted",
        ("PodsReady timeout",),
    ),
    "deactivated in the queue": Situation(
        queued([], spec={"active": False}), W, "QueueDeactivated", ("set spec.active",)
    ),
    "waits for an admission check": Situation(
        queued(
            [{"type": "QuotaReserved", "status": "True"}], admissionChecks=[{"name": "provision", "state": "Pending"}]
        ),
        W,
        "QueueChecks",
        ("admission checks provision",),
    ),
    "about to be started by Kueue": Situation(
        queued([{"type": "QuotaReserved", "status": "True"}]), W, "QueueChecks", ("about to be started",)
    ),
    "not looked at by Kueue": Situation(queued([]), W, "QueueWaiting", ("until Kueue looks at it",)),
    # gangs
    "the PodGroup is refused": Situation(
        seen(job(CREATED, condition("GangReady", "PodGroupRefused", "no CRD podgroups", "False"))),
        W,
        "GangNotReady",
        ("no CRD podgroups",),
    ),
    "the gang does not fit": Situation(
        seen(job(), unscheduled(""), group=group("Inqueue", "3/4 tasks in gang unschedulable")),
        W,
        "GangWaiting",
        ("until 4 pods fit", "in the queue default", "3/4 tasks"),
    ),
    "kube-scheduler has no place for the gang": Situation(
        seen(job(CREATED, condition("GangReady", "Unschedulable", "0/2 nodes are available", "False"))),
        W,
        "GangWaiting",
        ("cannot place the gang", "(Unschedulable)", "0/2 nodes are available"),
    ),
    "no gang scheduler": Situation(
        seen(job(), group=group("")), W, "GangIgnored", ("gang scheduler of --gang-scheduler-name runs",)
    ),
    # the operator
    "no operator": Situation(
        untouched(operators=()), W, "NoOperator", ("for 10 min", "no Deployment", "kubectl apply")
    ),
    "the operator may not be read": Situation(
        untouched(unread=("deployments: forbidden",)), W, "NoOperator", ("ask an administrator",)
    ),
    "the operator is down": Situation(
        untouched(operators=(operator(ready=0),)), W, "OperatorDown", ("kubeflow/training-operator has no ready pod",)
    ),
    "the kind is not enabled": Situation(
        untouched(operators=(operator(schemes=("tfjob",)),)),
        W,
        "KindDisabled",
        ("does not handle PyTorchJob", "--enable-scheme=PyTorchJob"),
    ),
    "another namespace is watched": Situation(
        untouched(operators=(operator(watched="kubeflow"),)),
        W,
        "OtherNamespace",
        ("watches only the namespace kubeflow",),
    ),
    "the operator is idle": Situation(untouched(operators=(operator(),)), W, "OperatorIdle", ("look into its log",)),
    "one of two operators should act": Situation(
        untouched(operators=(operator(watched="x"), operator(name="second"))), W, "OperatorIdle", ("kubeflow/second",)
    ),
    "the operator lacks a right": Situation(
        seen(events=(event("PermissionDenied", "the operator's role lacks `create pods`"),)),
        W,
        "OperatorDenied",
        ("create pods", "grant it"),
    ),
    # creation
    "quota": Situation(
        seen(
            events=(
                event(
                    "FailedCreatePod",
                    'Error creating: pods "j-worker-0" is forbidden: exceeded quota: gpus, requested: 8',
                ),
            )
        ),
        W,
        "QuotaExceeded",
        ("exceeded quota: gpus",),
    ),
    "pod security": Situation(
        seen(
            events=(
                event(
                    "FailedCreatePod", 'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot'
                ),
            )
        ),
        W,
        "PodSecurity",
        ("runAsNonRoot",),
    ),
    "another webhook refuses": Situation(
        seen(
            events=(
                event("FailedCreatePod", 'admission webhook "policy.example.com" denied the request: no latest tags'),
            )
        ),
        W,
        "WebhookRefuses",
        ("no latest tags",),
    ),
    "service account": Situation(
        seen(
            events=(
                event(
                    "FailedCreatePod",
                    'error looking up service account team/trainer: serviceaccount "trainer" not found',
                ),
            )
        ),
        W,
        "AccountMissing",
        ("serviceAccountName",),
    ),
    "priority class": Situation(
        seen(events=(event("FailedCreatePod", "no PriorityClass with name high was found"),)),
        W,
        "PriorityMissing",
        ("priorityClassName",),
    ),
    "limit range": Situation(
        seen(events=(event("FailedCreatePod", "maximum memory usage per Container is 1Gi, but limit is 2Gi"),)),
        W,
        "LimitRange",
    ),
    "the namespace ends": Situation(
        seen(
            events=(
                event(
                    "FailedCreatePod", "unable to create new content in namespace team because it is being terminated"
                ),
            )
        ),
        W,
        "NamespaceEnds",
    ),
    "a name is taken": Situation(
        seen(events=(event("FailedCreateService", 'services "j-master-0" already exists'),)),
        W,
        "NameTaken",
        ("another name",),
    ),
    "creation fails otherwise": Situation(
        seen(events=(event("FailedCreatePod", "boom"),)), W, "CreationFails", ("boom",)
    ),
    # placement
    "too few GPUs": Situation(
        seen(job(), *(unscheduled(GPU, index) for index in range(3)), UP[0]),
        T,
        "Unschedulable",
        ("3 of 4 pods fit on no node: 12 of 12 nodes: Insufficient nvidia.com/gpu", "fewer GPUs per pod"),
    ),
    "several reasons": Situation(
        seen(job(), unscheduled(MIXED, 0), unscheduled(GPU, 1)),
        W,
        "Unschedulable",
        ("1 of them: 3 of 12 nodes: didn't match Pod's node affinity/selector", "nodeSelector"),
    ),
    "taint": Situation(
        seen(job(), unscheduled(TAINT)), W, "Unschedulable", ("untolerated taint {gpu: true}", "add a toleration")
    ),
    "claim missing": Situation(
        seen(job(), unscheduled('0/3 nodes are available: persistentvolumeclaim "data" not found. not found')),
        W,
        "Unschedulable",
        ('persistentvolumeclaim "data" not found', "create the PersistentVolumeClaim"),
    ),
    "claim unbound": Situation(
        seen(job(), unscheduled("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")),
        W,
        "Unschedulable",
        ("storage class",),
    ),
    "no nodes": Situation(
        seen(job(), unscheduled("no nodes available to schedule pods")),
        W,
        "Unschedulable",
        ("no node that takes pods",),
    ),
    "gated": Situation(
        seen(job(), unscheduled("", reason="SchedulingGated", spec={"schedulingGates": [{"name": "example.com/net"}]})),
        W,
        "Gated",
        ("held back by the scheduling gate example.com/net",),
    ),
    "no such scheduler": Situation(
        seen(job(), pod(node="", spec={"schedulerName": "mine"})), W, "NoScheduler", ("the scheduler mine runs",)
    ),
    # start
    "image": Situation(
        seen(
            job(),
            pod(containers=(waiting("ImagePullBackOff", 'Back-off pulling image "repo/image:tag": manifest unknown'),)),
            UP[0],
        ),
        T,
        "ImagePull",
        ("repo/image:tag cannot be pulled for worker-0", "manifest unknown", "imagePullSecrets"),
    ),
    "image name": Situation(
        seen(job(), pod(containers=(waiting("InvalidImageName", "couldn't parse image"),))),
        W,
        "ImagePull",
        ("couldn't parse",),
    ),
    "image of an init container": Situation(
        seen(job(), pod(init=(waiting("ErrImagePull", "no such host", name="init-pytorch"),))),
        W,
        "ImagePull",
        ("init:1",),
    ),
    "configuration": Situation(
        seen(job(), pod(containers=(waiting("CreateContainerConfigError", 'secret "token" not found'),))),
        W,
        "ContainerConfig",
        ('secret "token" not found', "Secret, ConfigMap"),
    ),
    "container cannot be created": Situation(
        seen(job(), pod(containers=(waiting("CreateContainerError", "no command specified"),))),
        W,
        "ContainerConfig",
        ("no command",),
    ),
    "volume": Situation(
        seen(
            job(),
            pod(containers=(waiting("ContainerCreating"),)),
            events=(event("FailedMount", 'MountVolume.SetUp failed for volume "v" : configmap "c" not found', "Pod"),),
        ),
        W,
        "VolumeMount",
        ('configmap "c" not found',),
    ),
    "volume busy elsewhere": Situation(
        seen(
            job(),
            pod(containers=(waiting("ContainerCreating"),)),
            events=(event("FailedAttachVolume", "Multi-Attach error for volume pvc-1", "Pod"),),
        ),
        W,
        "VolumeMount",
        ("Multi-Attach",),
    ),
    "waits for the master": Situation(
        seen(
            job(),
            unscheduled(GPU, 0, age=1),
            pod("worker", 1, init=(running("init-pytorch"),), containers=(waiting("PodInitializing"),)),
        ),
        W,
        "Unschedulable",
        ("Insufficient",),
    ),
    "waits for a master that starts": Situation(
        seen(
            job(),
            pod("master", 0, age=20, containers=(waiting("ContainerCreating"),)),
            pod("worker", 1, age=20, init=(running("init-pytorch"),), containers=(waiting("PodInitializing"),)),
        ),
        W,
        "WaitsForMaster",
        ("worker-1 waits until the name of the master, j-master-0, which is Pending", "why the master"),
    ),
    "DNS does not know the master": Situation(
        seen(job(), UP[0], pod("worker", 1, init=(running("init-pytorch"),), containers=(waiting("PodInitializing"),))),
        T,
        "WaitsForMaster",
        ("cluster's DNS",),
    ),
    "init container": Situation(
        seen(job(), pod(init=(running("fetch"),), containers=(waiting("PodInitializing"),))),
        W,
        "Initializing",
        ("kubectl logs j-worker-0 -c fetch",),
    ),
    "slow start": Situation(
        seen(
            job(),
            pod(containers=(waiting("ContainerCreating"),)),
            events=(event("Pulling", "Pulling image", "Pod", "Normal"),),
        ),
        W,
        "SlowStart",
        ("not started for 10 min", "Pulling image"),
    ),
    # failures
    "crash loop": Situation(
        seen(
            job(),
            pod(
                "master",
                0,
                "Running",
                conditions=(),
                containers=(
                    waiting("CrashLoopBackOff", restartCount=5, lastState=ended(1, message="Traceback\nKeyError: 'x'")),
                ),
            ),
        ),
        T,
        "CrashLoop",
        ("with code 1 again and again (5 restarts)", "KeyError: 'x'", "--previous"),
    ),
    "an init container fails": Situation(
        seen(job(), pod(init=(waiting("CrashLoopBackOff", name="fetch", restartCount=2, lastState=ended(2)),))),
        W,
        "CrashLoop",
        ("init container fetch",),
    ),
    "killed for memory and restarted": Situation(
        seen(
            job(), pod("worker", 0, "Running", containers=(running(lastState=ended(137, "OOMKilled"), restartCount=1),))
        ),
        T,
        "OutOfMemory",
        ("more memory than its limit",),
    ),
    "a node is lost": Situation(
        seen(job(), *UP, nodes={"node-a": node("Unknown")}),
        T,
        "NodeLost",
        ("node node-a is not ready", "all 2 pods are on it"),
    ),
    "a node is gone": Situation(seen(job(), *UP, nodes={"node-a": {}}), T, "NodeLost", ("does not exist any more",)),
    "stuck on a lost node": Situation(
        seen(job(), pod("worker", 0, "Running", **STUCK), nodes={"node-a": node("Unknown")}),
        W,
        "StuckTerminating",
        ("worker-0 does not end on node node-a, of which node-a is not ready", "--force-delete-after"),
    ),
    "stuck by a finalizer": Situation(
        seen(job(), pod("worker", 0, "Running", finalizers=["x/y"], **STUCK)), W, "StuckTerminating", ("finalizer x/y",)
    ),
    "a finished job's pods do not end": Situation(
        seen(job(condition("Succeeded")), pod("worker", 0, "Running", **STUCK)), S, "Succeeded"
    ),
    "back-off": Situation(
        seen(
            job(
                condition("Restarting"),
                annotations=restarts(3, rounds={"Worker": [6, ago(5)]}),
                policy={"backoffLimit": 5},
                status={"lastFailure": failure(attempt=3, log=["RuntimeError"])},
            )
        ),
        W,
        "BackOff",
        ("3 after failures of 5", "the next pods are created in", "Worker 1 (rank 2", "RuntimeError"),
    ),
    "restarting": Situation(
        seen(job(condition("Restarting"), annotations=restarts(1, 2))),
        W,
        "Restarting",
        ("1 after failures", "2 after disruptions, which do not count towards backoffLimit"),
    ),
    "restarted and running again": Situation(
        seen(job(condition("Running"), annotations=restarts(0, 1)), *UP), R, "Running", ("all 2 pods run",)
    ),
    # running
    "running": Situation(seen(job(condition("Running")), *UP), R, "Running", ("all 2 pods run",)),
    "running with progress": Situation(
        seen(job(condition("Running"), status={"trainerStatus": {"progressPercentage": 42}}), *UP),
        R,
        "Running",
        ("42 % done",),
    ),
    "running with a deadline": Situation(
        seen(job(condition("Running"), policy={"activeDeadlineSeconds": 3600}, status={"startTime": ago(600)}), *UP),
        R,
        "Running",
    ),
    "silent": Situation(
        seen(job(condition("Running")), *UP, last_output={"master-0": NOW - timedelta(minutes=12)}),
        T,
        "Silent",
        ("master-0 printed nothing for 12 min", "trainop stacks"),
    ),
    "one talks": Situation(
        seen(job(condition("Running")), *UP, last_output={"master-0": NOW - timedelta(minutes=12), "worker-0": NOW}),
        R,
        "Running",
    ),
    "stalled": Situation(
        seen(job(condition("Running"), condition("Stalled", message="no report for 30m")), *UP),
        T,
        "Stalled",
        ("no report for 30m",),
    ),
    "stalled and restarting": Situation(
        seen(
            job(
                condition("Stalled", "NoProgress", "No report of progress for 30m; all its pods are restarted"),
                condition("Restarting"),
                annotations=restarts(1),
                status={"lastFailure": {"reason": "Stalled", "message": "No report of progress for 30m"}},
            )
        ),
        W,
        "Stalled",
        ("all its pods are restarted",),
    ),
    "stalled once too often": Situation(
        failed(
            "Job j has failed because it has reached the specified backoff limit. No replica had failed: No report.",
            {"reason": "Stalled", "message": "No report of progress for 30m: pod j-master-0 was last heard"},
        ),
        F,
        "Failed",
        ("used up its restarts", "No report of progress for 30m: pod j-master-0"),
    ),
    "reporting": Situation(
        seen(job(condition("Stalled", "ProgressReported", status="False"), condition("Running")), *UP), R, "Running"
    ),
    "suspended at the startup deadline": Situation(
        seen(
            job(
                condition("Started", "StartupDeadlineExceeded", "1 of 2 replicas have not started", "False"),
                condition("Suspended"),
                policy={"suspend": True},
            )
        ),
        W,
        "StartupDeadline",
        ("not all of its replicas started in time", "1 of 2 replicas", "suspend to false"),
    ),
    "failed at the startup deadline": Situation(
        failed(
            "Job j has failed because not all of its replicas started before its startup deadline. No replica had",
            {"reason": "StartupDeadlineExceeded", "message": "1 of 2 replicas have not started within 20m: 1: x"},
        ),
        F,
        "Failed",
        ("not all replicas started in time", "1 of 2 replicas have not started within 20m"),
    ),
    "late and kept by Kueue": Situation(
        seen(
            job(
                condition("Started", "StartupDeadlineExceeded", "1 of 2 replicas have not started", "False"),
                condition("Running"),
                labels={"kueue.x-k8s.io/queue-name": "team"},
            ),
            *UP,
        ),
        T,
        "StartupDeadline",
        ("not all replicas started before", "1 of 2 replicas", "waitForPodsReady"),
    ),
    "partly running": Situation(
        seen(job(condition("Running")), UP[0], pod("worker", 1, age=5, containers=(waiting("ContainerCreating"),))),
        T,
        "PartlyRunning",
        ("1 of 2 pods run; worker-1",),
    ),
    "some have finished": Situation(
        seen(job(condition("Running")), UP[0], pod("worker", 1, "Succeeded")), R, "Running", ("1 have finished",)
    ),
    # nothing known
    "just created": Situation(seen(job(age=5)), W, "Starting", ("nothing is wrong",)),
    "unexplained": Situation(
        seen(events=(event("Odd", "something", "Service", "Normal"),)),
        W,
        "Unexplained",
        ("0 pods", "Service j: Odd: something"),
    ),
}
"""By name."""
