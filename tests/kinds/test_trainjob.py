"""TrainJobs: the job that is made of each, what is refused, and the status that clients read.

The oracle is Kubeflow Trainer: `pkg/apis/trainer/v1alpha1`, `pkg/runtime/framework/plugins`, and the fields that the
SDK `kubeflow` 0.5 reads (`kubeflow/trainer/backends/kubernetes`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.engine.builders import UID
from tests.engine.world import World
from tests.kinds.mpi_world import MpiWorld
from trainop.engine.parse import parse
from trainop.kinds.mpi.transport import LAUNCHER_JOBS
from trainop.kinds.trainjob.runtimes import shipped_runtimes
from trainop.kinds.trainjob.status import is_finished, next_status
from trainop.kinds.trainjob.trainer import count_processes
from trainop.kinds.trainjob.translate import Child, Refusal, translate
from trainop.programs.schemes import FRAMEWORKS
from trainop.runtime.objects.metadata import Json, Unstructured

TORCH, JAX, DEEPSPEED, _MLX = shipped_runtimes()
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
AT, EARLIER = "2026-01-02T03:04:05Z", "2026-01-02T03:00:00Z"


def train_job(metadata: Json | None = None, **spec: Any) -> Unstructured:
    made = {"name": "t", "namespace": "ns", "uid": "u", **(metadata or {})}
    return Unstructured({"metadata": made, "spec": {"runtimeRef": {"name": "torch-distributed"}, **spec}})


def child_of(job: Unstructured, runtime: Json = TORCH) -> Child:
    found = translate(job, runtime)
    assert isinstance(found, Child), found
    return found


def refusal_of(job: Unstructured, runtime: Json = TORCH) -> str:
    found = translate(job, runtime)
    assert isinstance(found, Refusal), found
    return found.message


def changed(runtime: Json, *path: str | int, **fields: Any) -> Json:
    """A copy of the runtime with these fields at the path below `spec`."""

    def change(value: Any, rest: tuple[str | int, ...]) -> Any:
        if not rest:
            return {**value, **fields}
        if isinstance(value, list):
            return [change(each, rest[1:]) if place == rest[0] else each for place, each in enumerate(value)]
        return {**value, rest[0]: change(value.get(rest[0]) or {}, rest[1:])}

    return {**runtime, "spec": change(runtime["spec"], path)}


NODE = ("template", "spec", "replicatedJobs", 0)
JOB = (*NODE, "template", "spec")
POD = (*JOB, "template", "spec")


def pods_of(child: Child) -> dict[str, Json]:
    """What the engine makes of the job."""
    job = child.manifest(train_job(), suspend=False)
    job["metadata"] |= {"uid": "c", "resourceVersion": "1", "generation": 1}
    framework = FRAMEWORKS[job["kind"]]
    assert parse(framework, Unstructured(job)).errors == ()
    world = World(job, framework=framework)
    world.settle()
    return world.pods


def variables(container: Json) -> Json:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_the_nodes_of_torch_have_what_torchrun_and_the_sdk_read():
    trainer = {
        "numNodes": 2,
        "image": "mine",
        "command": ["torchrun"],
        "args": ["a.py"],
        "env": [{"name": "A", "value": "1"}],
        "resourcesPerNode": {"limits": {"cpu": "2500m"}, "requests": {"cpu": "2500m"}},
    }
    pods = pods_of(child_of(train_job(trainer=trainer)))
    assert list(pods) == ["t-worker-0", "t-worker-1"]
    for index, pod in enumerate(pods.values()):
        labels = pod["metadata"]["labels"]
        assert labels["jobset.sigs.k8s.io/jobset-name"] == "t"
        assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == "node"
        assert labels["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"
        assert labels["batch.kubernetes.io/job-completion-index"] == str(index)
        (container,) = pod["spec"]["containers"]
        assert (container["name"], container["image"]) == ("node", "mine")
        assert (container["command"], container["args"]) == (["torchrun"], ["a.py"])
        assert container["resources"] == trainer["resourcesPerNode"]
        found = variables(container)
        assert found["A"] == "1"
        assert (found["PET_NNODES"], found["PET_NPROC_PER_NODE"]) == ("2", "3")
        assert (found["PET_MASTER_ADDR"], found["PET_MASTER_PORT"]) == ("t-worker-0", "29500")
        path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
        assert found["PET_NODE_RANK"] == {"fieldRef": {"fieldPath": path}}


def test_the_nodes_of_jax_have_what_jax_distributed_reads():
    pods = pods_of(child_of(train_job(trainer={"numNodes": 2}), JAX))
    found = variables(pods["t-worker-1"]["spec"]["containers"][0])
    assert (found["NUM_PROCESSES"], found["PROCESS_ID"]) == ("2", "1")
    assert found["COORDINATOR_ADDRESS"] == "t-worker-0"


def mpi_world(runtime: Json = DEEPSPEED, **trainer: Any) -> MpiWorld:
    """The MPIJob of a TrainJob, with its children."""
    child = child_of(train_job(trainer=trainer), runtime)
    job = child.manifest(train_job(), suspend=False)
    job["metadata"] |= {"uid": UID, "resourceVersion": "1", "generation": 1}
    found = MpiWorld(job)
    for _ in range(5):
        found.step()
    return found


def labels_of(pod: Json) -> tuple[str, str, str]:
    labels = pod["metadata"]["labels"]
    names = ("replicatedjob-name", "jobset-name")
    return (
        *(labels[f"jobset.sigs.k8s.io/{name}"] for name in names),
        labels["batch.kubernetes.io/job-completion-index"],
    )


def test_the_launcher_of_mpi_is_node_0():
    """The SDK numbers the nodes of mpi from the launcher, and those of `node` from 1 (`get_trainjob_node_step`)."""
    command, env = ["mpirun", "a"], [{"name": "A", "value": "1"}]
    resources = {"limits": {"cpu": "1"}}
    found = mpi_world(numNodes=3, numProcPerNode=2, image="mine", command=command, env=env, resourcesPerNode=resources)
    assert found.job is not None
    spec = found.job["spec"]
    assert found.job["apiVersion"] == "kubeflow.org/v2beta1"
    assert found.job["metadata"]["annotations"]["trainop.kubeflow.org/mpi-transport"] == "ssh"
    assert (spec["slotsPerWorker"], spec["runLauncherAsWorker"], spec["mpiImplementation"]) == (2, True, "OpenMPI")
    assert spec["sshAuthMountPath"] == "/home/mpiuser/.ssh"
    (job,) = found.companions[LAUNCHER_JOBS].values()
    launcher = job["spec"]["template"]
    assert labels_of(launcher) == ("launcher", "t", "0")
    assert launcher["spec"]["containers"][0]["command"] == command
    assert list(found.pods) == ["t-worker-0", "t-worker-1"]
    for index, pod in enumerate(found.pods.values()):
        assert labels_of(pod) == ("node", "t", str(index))
        assert pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] == str(index + 1)
        (container,) = pod["spec"]["containers"]
        assert (container["image"], container["command"]) == ("mine", ["/usr/sbin/sshd"])
        assert container["resources"] == resources
        assert env[0] in container["env"]


def test_one_node_of_mpi_is_the_launcher():
    found = mpi_world()
    assert found.pods == {}
    assert [job["metadata"]["name"] for job in found.companions[LAUNCHER_JOBS].values()] == ["t-launcher"]


def test_a_launcher_that_does_not_work_is_no_node():
    runtime = changed(DEEPSPEED, "mlPolicy", mpi={"numProcPerNode": 4})
    found = mpi_world(runtime, numNodes=1)
    assert found.job is not None
    assert (found.job["spec"]["slotsPerWorker"], found.job["spec"]["sshAuthMountPath"]) == (4, "/root/.ssh")
    assert list(found.pods) == ["t-worker-0"]


@pytest.mark.parametrize("own", [True, False])
def test_a_label_of_the_template_does_not_take_the_place_of_a_number(own: bool):
    labels = {
        "batch.kubernetes.io/job-completion-index": "x",
        **({"training.kubeflow.org/replica-index": "y"} if own else {}),
    }
    template = ("template", "spec", "replicatedJobs", 1, "template", "spec", "template")
    found = mpi_world(changed(DEEPSPEED, *template, metadata={"labels": labels}), numNodes=2)
    given = found.pods["t-worker-0"]["metadata"]["labels"]
    assert [
        given[name] for name in ("batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index")
    ] == [
        "0",
        "1",
    ]


LAUNCHER = ("template", "spec", "replicatedJobs", 0)


@pytest.mark.parametrize(
    ("trainer", "runtime", "part"),
    [
        ({"numProcPerNode": "auto"}, DEEPSPEED, 'spec.trainer.numProcPerNode: Invalid value: "auto": must be a number'),
        ({}, changed(DEEPSPEED, "mlPolicy", "mpi", numProcPerNode="x"), "mlPolicy.mpi.numProcPerNode: Invalid value"),
        (
            {},
            changed(DEEPSPEED, "mlPolicy", "mpi", mpiImplementation="LAM"),
            "mlPolicy.mpi.mpiImplementation: Unsupported",
        ),
        (
            {},
            changed(DEEPSPEED, "mlPolicy", "mpi", runLauncherAsNode=1),
            "mlPolicy.mpi.runLauncherAsNode: Invalid value",
        ),
        (
            {},
            changed(DEEPSPEED, "mlPolicy", mpi=None, torch={}),
            "replicatedJobs[launcher]: Forbidden: only mpi has such",
        ),
        ({}, changed(TORCH, "mlPolicy", torch=None, mpi={}), "must have a job with the name launcher"),
        (
            {},
            changed(DEEPSPEED, *LAUNCHER, "template", metadata={}),
            "one must have the label trainer.kubeflow.org/trainjob-an",
        ),
        (
            {},
            changed(
                DEEPSPEED,
                *LAUNCHER,
                "template",
                "spec",
                "template",
                "spec",
                containers=[{"name": "x"}, {"name": "node"}],
            ),
            "replicatedJobs[launcher]: Forbidden: the container node must be the first",
        ),
    ],
)
def test_a_runtime_of_mpi_that_cannot_be_carried_over(trainer: Json, runtime: Json, part: str):
    assert part in refusal_of(train_job(trainer=trainer), runtime)


def test_the_runtimes_of_a_machine_without_images_work_in_folders_of_their_own():
    for runtime in shipped_runtimes(scratch=True):
        for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            spec = job["template"]["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            assert container["workingDir"] in {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {each["name"] for each in spec["volumes"]} == {each["name"] for each in container["volumeMounts"]}
        assert isinstance(translate(train_job(), runtime), Child)


def test_the_job_is_an_ordinary_one_of_the_same_name():
    metadata = {
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "annotations": {
            "trainop.kubeflow.org/progress": "true",
            "kubectl.kubernetes.io/last-applied-configuration": "x",
        },
    }
    runtime = changed(TORCH, "template", metadata={"labels": {"l": "1"}, "annotations": {"a": "1"}})
    job = train_job(metadata, labels={"l": "2"}, annotations={"a": "2"}, activeDeadlineSeconds=9)
    made = child_of(job, changed(runtime, *JOB, backoffLimit=2)).manifest(job, suspend=True)
    assert (made["apiVersion"], made["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainJob", "u", True)
    assert made["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q", "l": "2"}
    annotations = made["metadata"]["annotations"]
    assert (annotations["trainop.kubeflow.org/progress"], annotations["a"]) == ("true", "2")
    assert "kubectl.kubernetes.io/last-applied-configuration" not in annotations
    assert made["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "backoffLimit": 2,
        "activeDeadlineSeconds": 9,
        "suspend": True,
    }
    assert "suspend" not in child_of(job).manifest(job, suspend=False)["spec"]["runPolicy"]


@pytest.mark.parametrize(
    ("pod", "limit", "policy"),
    [
        ({}, {}, "OnFailure"),
        ({"restartPolicy": "Never"}, {}, "OnFailure"),
        ({"restartPolicy": "Never"}, {"backoffLimit": 0}, "Never"),
        ({"restartPolicy": "OnFailure"}, {"backoffLimit": 0}, "OnFailure"),
    ],
)
def test_a_failed_node_restarts_as_in_a_batch_job(pod: Json, limit: Json, policy: str):
    child = child_of(train_job(), changed(changed(TORCH, *JOB, **limit), *POD, **pod))
    worker = child.spec["pytorchReplicaSpecs"]["Worker"]
    assert (worker["restartPolicy"], child.spec["runPolicy"]["backoffLimit"]) == (policy, limit.get("backoffLimit", 6))
    assert "restartPolicy" not in worker["template"]["spec"]


@pytest.mark.parametrize(
    ("given", "resources", "processes"),
    [
        ("auto", {}, "auto"),
        ("auto", {"limits": {"cpu": "3"}}, "3"),
        ("auto", {"requests": {"cpu": 2}}, "2"),
        ("auto", {"limits": {"cpu": "100m"}}, "1"),
        ("auto", {"limits": {"cpu": "3", "nvidia.com/gpu": 1}}, "auto"),
        ("cpu", {"limits": {"cpu": "3", "nvidia.com/gpu": 1}}, "3"),
        ("gpu", {"limits": {"cpu": "3"}}, "gpu"),
        ("4", {"limits": {"cpu": "3"}}, "4"),
        ("auto", {"limits": {"cpu": "many"}}, "auto"),
    ],
)
def test_processes_per_node(given: str, resources: Json, processes: str):
    """trainer `pkg/runtime/framework/plugins/torch/torch_test.go`."""
    assert count_processes(given, resources) == processes


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        (
            {"initializer": {"dataset": {"storageUri": "hf://x"}}},
            "spec.initializer: Forbidden: not supported: read data",
        ),
        ({"podTemplateOverrides": [{}]}, "spec.podTemplateOverrides: Forbidden: not supported: spec.runtimePatches"),
        ({"trainer": {"numNodes": 0}}, "spec.trainer.numNodes: Invalid value: 0: must be greater than or equal to 1"),
        (
            {"trainer": {"numProcPerNode": "all"}},
            'spec.trainer.numProcPerNode: Invalid value: "all": must be auto, cpu',
        ),
        (
            {"trainer": {"env": [{"name": "PET_NNODES"}]}},
            "spec.trainer.env[0].name: Forbidden: the operator sets PET_NN",
        ),
        ({"trainer": 3}, "spec.trainer: Invalid value: 3: must be an object"),
        ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds: Invalid value: 0: must be greater"),
    ],
)
def test_a_train_job_that_cannot_be_run_names_the_field(spec: Json, start: str):
    assert refusal_of(train_job(**spec)).startswith(start)


AT_TORCH = "ClusterTrainingRuntime/torch-distributed: spec"


@pytest.mark.parametrize(
    ("path", "fields", "start"),
    [
        (
            ("template", "spec"),
            {"successPolicy": {"operator": "Any"}},
            '.template.spec.successPolicy.operator: Invalid value: "Any": must be All',
        ),
        (("mlPolicy",), {"flux": {}}, ".mlPolicy: Forbidden: must have one of torch, jax"),
        (("mlPolicy",), {"torch": None}, ".mlPolicy: Forbidden: must have one of torch, jax"),
        ((), {"podGroupPolicy": {"coscheduling": {}}}, ".podGroupPolicy: Forbidden: not supported"),
        (
            ("template", "spec"),
            {"failurePolicy": {"maxRestarts": 3}},
            ".template.spec.failurePolicy: Forbidden: not su",
        ),
        (
            ("template", "spec"),
            {"replicatedJobs": []},
            ".template.spec.replicatedJobs: Required value: must have a job",
        ),
        (NODE, {"name": "dataset-initializer"}, ".template.spec.replicatedJobs[0].name: Invalid value: "),
        (NODE, {"dependsOn": [{"name": "x"}]}, ".template.spec.replicatedJobs[0].dependsOn: Forbidden: not supported"),
        (NODE, {"replicas": 2}, ".template.spec.replicatedJobs[0].replicas: Forbidden: must be 1"),
        (
            JOB,
            {"podFailurePolicy": {"rules": []}},
            ".template.spec.replicatedJobs[0].template.spec.podFailurePolicy: F",
        ),
        (
            POD,
            {"containers": [{"name": "x"}]},
            ".template.spec.replicatedJobs[0].template.spec.template.spec.container",
        ),
        (
            POD,
            {"containers": 5},
            ".template.spec.replicatedJobs[0].template.spec.template.spec.containers: Invalid val",
        ),
    ],
)
def test_a_runtime_that_cannot_be_carried_over_names_the_field(path: Any, fields: Json, start: str):
    text = refusal_of(train_job(), changed(TORCH, *path, **fields))
    assert text.removeprefix("[").startswith(AT_TORCH + start), text


def test_several_jobs_of_one_name_are_refused():
    (node,) = TORCH["spec"]["template"]["spec"]["replicatedJobs"]
    text = refusal_of(train_job(), changed(TORCH, "template", "spec", replicatedJobs=[node, node]))
    assert "replicatedJobs[1].name: Duplicate value" in text


def patch(spec: Json, name: str = "node", **more: Any) -> Json:
    """One entry of `runtimePatches` about the pods of one name."""
    job = {"name": name, "template": {"spec": {"template": {"spec": spec, **more}}}}
    return {"manager": "m", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}


def test_patches_change_the_pods():
    runtime = changed(TORCH, *POD, nodeSelector={"a": "1"}, volumes=[{"name": "v", "emptyDir": {}}])
    patches = [
        patch({"nodeSelector": {"b": "2"}, "tolerations": [{"key": "k"}], "serviceAccountName": "s"}),
        patch(
            {
                "volumes": [{"name": "v", "hostPath": {}}, {"name": "w"}],
                "containers": [{"name": "node", "volumeMounts": [{"name": "v"}], "securityContext": {"runAsUser": 1}}],
            },
            metadata={"labels": {"l": "1"}},
        ),
    ]
    template = child_of(train_job(runtimePatches=patches), runtime).spec["pytorchReplicaSpecs"]["Worker"]["template"]
    spec = template["spec"]
    assert template["metadata"]["labels"]["l"] == "1"
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"a": "1", "b": "2"}, [{"key": "k"}])
    assert (spec["serviceAccountName"], spec["volumes"]) == ("s", [{"name": "v", "hostPath": {}}, {"name": "w"}])
    (container,) = spec["containers"]
    assert (container["volumeMounts"], container["securityContext"]) == ([{"name": "v"}], {"runAsUser": 1})


def test_patches_of_the_job():
    metadata = {"labels": {"l": "1"}, "annotations": {"a": "1"}}
    child = child_of(
        train_job(runtimePatches=[{"manager": "m", "trainingRuntimeSpec": {"template": {"metadata": metadata}}}])
    )
    assert (child.labels["l"], child.annotations["a"]) == ("1", "1")


def test_patches_of_other_containers():
    pod = {"containers": [{"name": "node", "image": "i"}, {"name": "side", "env": [{"name": "A", "value": "1"}]}]}
    added = [{"name": "A", "value": "2"}, {"name": "B", "value": "3"}]
    child = child_of(
        train_job(runtimePatches=[patch({"containers": [{"name": "side", "env": added}]})]), changed(TORCH, *POD, **pod)
    )
    _, side = child.spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert side["env"] == added


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (
            patch({}, name="launcher"),
            '.replicatedJobs[0].name: Unsupported value: "launcher": supported values: "node"',
        ),
        (patch({"hostNetwork": True}), ".spec.hostNetwork: Forbidden: not supported"),
        (
            patch({"containers": [{"name": "x"}]}),
            '.containers[0].name: Invalid value: "x": the runtime has no container',
        ),
        (
            patch({"containers": [{"name": "node", "env": [{"name": "A"}]}]}),
            ".containers[0].env: Forbidden: spec.trainer.env has the variables of this container",
        ),
        ({"manager": "m", "trainingRuntimeSpec": {"mlPolicy": {"x": 1}}}, ".mlPolicy: Forbidden: not supported"),
        ("text", 'spec.runtimePatches[0]: Invalid value: "text": must be an object'),
    ],
)
def test_a_patch_that_cannot_be_carried_over_names_the_field(given: Any, part: str):
    assert part in refusal_of(train_job(runtimePatches=[given]))


@pytest.mark.parametrize("value", [None, 7, "x", [], [3], {"x": 1}, True])
def test_hostile_values_are_refused_or_harmless(value: Any):
    """CRDs of the pod templates are open, so that the API server stores any value there."""
    specs = [{"trainer": value}, {"trainer": {"env": [value]}}, {"runtimePatches": [patch(value)]}]
    specs += [{"runtimePatches": [patch({name: value})]} for name in ("containers", "tolerations", "nodeSelector")]
    for spec in specs:
        translate(train_job(**spec), TORCH)
    for path in ((), ("mlPolicy",), ("template",), NODE, JOB, POD):
        at: Any = TORCH["spec"]
        for step in path:
            at = at[step]
        for name in at:
            translate(train_job(), changed(TORCH, *path, **{name: value}))
    broken = changed(TORCH, *POD, nodeSelector=value, tolerations=value, volumes=value, initContainers=value)
    given = {"nodeSelector": {"a": "b"}, "tolerations": [{}], "volumes": [{"name": "v"}]}
    assert translate(train_job(runtimePatches=[patch(given)]), broken)


def test_a_change_of_the_job_shows_in_its_fingerprint():
    one, same = child_of(train_job()), child_of(train_job())
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != child_of(train_job(trainer={"image": "other"})).fingerprint


# Status ---------------------------------------------------------------------------------------------------------------


def seen(*conditions: str, active: int = 0, succeeded: int = 0, **status: Any) -> Json:
    """The job that runs a TrainJob of two nodes."""
    found = [{"type": each, "status": "True", "message": f"It is {each}."} for each in conditions]
    counts = {"Worker": {"active": active, "succeeded": succeeded}}
    spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}}
    return {"spec": spec, "status": {"conditions": found, "replicaStatuses": counts, **status}}


def status(stored: Any = None, child: Json | None = None, refusal: str = "", *, suspend: bool = False) -> Json:
    return next_status(stored, child, refusal, suspend=suspend, now=NOW)


def condition(type_: str, value: str, reason: str, message: str, at: str = AT) -> Json:
    return {"type": type_, "status": value, "reason": reason, "message": message, "lastTransitionTime": at}


@pytest.mark.parametrize(
    ("child", "counters"),
    [
        (seen("Created"), (1, 0, 0, 0, 0)),
        (seen("Created", "Running", active=1), (1, 0, 0, 0, 0)),
        (seen("Created", "Running", active=2), (1, 0, 1, 0, 0)),
        (seen("Created", "Running", active=1, succeeded=1), (1, 0, 1, 0, 0)),
        (seen("Created", "Suspended"), (0, 0, 0, 0, 1)),
        (seen("Created", "Succeeded"), (0, 0, 0, 1, 0)),
        (seen("Created", "Failed"), (0, 1, 0, 0, 0)),
    ],
)
def test_counters(child: Json, counters: tuple[int, ...]):
    """JobStatus of trainer `trainjob_types.go`: each part of the job counts as one, once."""
    names = ("active", "failed", "ready", "succeeded", "suspended")
    assert status(None, child)["jobsStatus"] == [{"name": "node", **dict(zip(names, counters, strict=True))}]


def test_a_job_that_runs_has_no_conditions():
    """The SDK asks the pods whether it runs only then (`__get_trainjob_from_cr`)."""
    assert "conditions" not in status(None, seen("Created", "Running"))


def test_the_end_is_shown_with_the_reason_of_the_job():
    complete = condition("Complete", "True", "AllJobsCompleted", "It is Succeeded.")
    assert status(None, seen("Succeeded"))["conditions"] == [complete]
    failed = condition("Failed", "True", "FailedJobs", "It is Failed.")
    assert status(None, seen("Failed"))["conditions"] == [failed]
    assert is_finished({"conditions": [complete]})
    assert is_finished({"conditions": [failed]})


def test_suspended_and_resumed():
    on = condition("Suspended", "True", "Suspended", "TrainJob is suspended", EARLIER)
    assert status(None, suspend=True)["conditions"] == [on | {"lastTransitionTime": AT}]
    assert status({"conditions": [on]}, suspend=True) == {"conditions": [on]}
    off = condition("Suspended", "False", "Resumed", "TrainJob is resumed")
    assert status({"conditions": [on]})["conditions"] == [off]


def test_a_refused_job_has_not_ended_and_may_be_corrected():
    refused = status(None, None, "no")
    assert refused["conditions"] == [condition("Failed", "True", "TrainingRuntimeNotSupported", "no")]
    assert not is_finished(refused)
    assert status({"conditions": [{**refused["conditions"][0], "lastTransitionTime": EARLIER}]}, None, "else")[
        "conditions"
    ] == [condition("Failed", "True", "TrainingRuntimeNotSupported", "else", EARLIER)]
    assert status(refused, seen("Created"))["conditions"] == []


def test_progress_is_shown():
    progress = {"progressPercentage": 7}
    assert status(None, seen("Running", trainerStatus=progress))["trainerStatus"] == progress
