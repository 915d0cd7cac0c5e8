"""`trainop plan` beside the operator itself: what it announces for every example is what the operator then makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from trainop.cli import cli
from trainop.commands.compare import compare, name_objects
from trainop.commands.connection import Connection
from trainop.commands.plan import live_objects, plan_files
from trainop.engine.actions import Plan
from trainop.engine.seen import Options
from trainop.explain.rehearsal import rehearse
from trainop.programs.operator import build
from trainop.programs.schemes import all_kinds, crds
from trainop.programs.settings import Settings
from trainop.runtime.objects.metadata import PODS
from trainop.testing.cluster import TestCluster

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*/*.yaml")
    if path.parent.name not in {"broken", "runtime"}
)


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, ["plan", *map(str, args)], catch_exceptions=False)


def job(replicas: int = 3, name: str = "train", **policy: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "pytorch", "image": "i", "command": ["train"]}]}
    roles = {"Master": {"template": {"spec": pod}}, "Worker": {"replicas": replicas, "template": {"spec": pod}}}
    spec = {"pytorchReplicaSpecs": roles, "runPolicy": policy}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name}, "spec": spec}


def write(path: Path, *objects: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return path


def test_every_kind_has_an_example():
    kinds = {document["kind"] for path in EXAMPLES for document in yaml.safe_load_all(path.read_text()) if document}
    assert kinds >= {kind.resource.kind for kind in all_kinds()}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
async def test_the_operator_makes_exactly_what_was_planned(path: Path):
    """Names, and every field that the plan sets, as the API server stores them."""
    (planned,) = plan_files([path], Options())
    wanted = name_objects(planned.found.made)
    async with TestCluster(*crds()) as cluster:
        cluster.start(
            build(Settings(metrics_bind_address="0", health_probe_bind_address="0"), cluster.transport, signals=False)
        )
        await cluster.create(path)

        async def settled() -> bool:
            for pod in (await cluster.client.list(PODS, "default")).items:
                if "status" not in pod or pod["status"].get("phase") != "Running":
                    ready = {"type": "Ready", "status": "True"}
                    status = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [ready]}
                    name = pod["metadata"]["name"]
                    await cluster.client.patch(PODS, name, "default", {"status": status}, subresource="status")
            return (await found()).keys() >= wanted.keys()

        async def found() -> dict[tuple[str, str], Any]:
            return dict(await live_objects(Connection(cluster.client, "default", "test"), planned))

        await cluster.wait_until(settled)

        async def equal() -> bool:
            return not list(compare(await found(), wanted))

        try:
            await cluster.wait_until(equal)
        except AssertionError:
            assert list(compare(await found(), wanted)) == []
            raise


def test_the_tree_has_every_object_once_and_similar_ones_together(tmp_path: Path):
    said = run(write(tmp_path / "job.yaml", job(64))).output.splitlines()
    assert said[0] == "PyTorchJob train in namespace default makes 65 Services, 65 Pods"
    assert "├─ 64 Services train-worker-0 … train-worker-63" in said
    assert "└─ 64 Pods train-worker-0 … train-worker-63" in said
    assert "       RANK=1 … 64" in said
    assert "       WORLD_SIZE=65" in said
    assert said[-1] == "Services by --service-mode: replica 65, leader 1, job 1"
    assert len(said) < 50


def test_yaml_and_json_are_the_manifests(tmp_path: Path):
    path = write(tmp_path / "job.yaml", job())
    as_yaml = list(yaml.safe_load_all(run(path, "-o", "yaml").output))
    as_json = json.loads(run(path, "-o", "json").output)
    assert as_json["kind"] == "List"
    assert as_json["items"] == as_yaml
    assert sorted(each["metadata"]["name"] for each in as_yaml if each["kind"] == "Pod") == [
        "train-master-0",
        "train-worker-0",
        "train-worker-1",
        "train-worker-2",
    ]


def test_flags_of_the_operator_are_taken_into_account(tmp_path: Path):
    path = write(tmp_path / "job.yaml", job())
    flags = "--service-mode=job --gang-scheduler-name=volcano"
    said = run(path, "--operator-flags", flags).output
    assert said.splitlines()[0] == "PyTorchJob train in namespace default makes 1 PodGroup, 1 Service, 4 Pods"
    assert "schedulerName: volcano" in said
    bad = run(path, "--operator-flags", "service-mode=job")
    assert (bad.exit_code, "'service-mode=job' is no flag" in bad.output) == (2, True)


def test_a_suspended_job_shows_what_it_makes_once_resumed(tmp_path: Path):
    said = run(write(tmp_path / "job.yaml", job(suspend=True))).output.splitlines()
    assert said[0] == "PyTorchJob train in namespace default is suspended; once resumed, it makes 4 Services, 4 Pods"


def test_a_job_of_another_controller_makes_nothing(tmp_path: Path):
    said = run(write(tmp_path / "job.yaml", job(managedBy="kueue.x-k8s.io/multikueue"))).output.splitlines()
    assert said[0] == (
        "PyTorchJob train in namespace default is left to kueue.x-k8s.io/multikueue (spec.runPolicy.managedBy);"
        " nothing is made"
    )


def test_invalid_jobs_are_refused_as_run_refuses_them(tmp_path: Path):
    bad = job()
    bad["spec"]["pytorchReplicaSpecs"]["Worker"]["replica"] = 2
    refused = run(write(tmp_path / "job.yaml", bad))
    assert refused.exit_code == 2
    assert "spec.pytorchReplicaSpecs.Worker.replica: unknown field" in refused.output


def test_differences_between_two_files_stand_together(tmp_path: Path):
    new, old = write(tmp_path / "new.yaml", job(2)), write(tmp_path / "old.yaml", job(4))
    found = run(new, "--diff", old)
    assert found.exit_code == 1
    assert found.output.splitlines() == [
        "Pod/train-master-0, Pod/train-worker-0, Pod/train-worker-1:",
        "  ~ spec.containers[pytorch].env[WORLD_SIZE].value: 5 -> 3",
        "  ~ spec.containers[pytorch].env[PET_NNODES].value: 5 -> 3",
        "Service/train-worker-2, Pod/train-worker-2, Service/train-worker-3 and 1 more:",
        "  - the whole object",
    ]
    same = run(new, "--diff", new)
    assert (same.exit_code, same.output) == (0, "")


def test_hostile_texts_never_reach_the_terminal(tmp_path: Path):
    evil = job()
    container = evil["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    container["command"] = ["\x1b[2Jgone", "x" * 100_000]
    container["env"] = [{"name": "A", "value": "\x1b]0;title\x07text"}]
    path = write(tmp_path / "evil.yaml", evil)
    shown = run(path).output + run(path, "--diff", write(tmp_path / "old.yaml", job())).output
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "A=text" in shown
    assert max(map(len, shown.splitlines())) < 400


def test_large_jobs_are_planned_completely():
    """A plan creates a limited number of objects; the rehearsal goes on until there is nothing left to create."""
    kinds = [each for each in all_kinds() if each.resource.kind == "PyTorchJob"]
    found = rehearse(kinds, job(2000), Options(), datetime.now(UTC))
    assert len(found.made) == 2 * 2001
    assert len({each.name for each in found.made if each.resource == PODS}) == 2001


def test_a_plan_that_never_settles_ends():
    kind = next(each for each in all_kinds() if each.resource.kind == "PyTorchJob")
    changes = iter(range(10**6))
    restless = replace(kind, plan=lambda _: Plan(annotations={"number": str(next(changes))}))
    assert rehearse([restless], job(), Options(), datetime.now(UTC)).made == ()
    assert next(changes) < 100


@pytest.mark.parametrize("command", ["plan", "check"])
def test_a_reader_that_goes_away_is_no_error(command: str):
    """As in `trainop plan FILE | head -1`."""
    files = [str(path) for path in EXAMPLES if path.parent.name == "pytorch"]
    pipe, end = os.pipe()
    program = [sys.executable, "-m", "trainop", command, *files]
    with subprocess.Popen(program, stdout=end, stderr=subprocess.PIPE, text=True) as process:
        os.close(end)
        os.close(pipe)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (141, "")
