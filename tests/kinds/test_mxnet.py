"""Specifics of MXJob: the variables of ps-lite, MX_CONFIG, and the deciding role."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controllers.kinds import env, line, make, pods_of, running, world_of
from tests.upstream import Upstream
from trainop.engine.framework import JOB_ROLE
from trainop.engine.parse import parse
from trainop.kinds.mxnet import MXNET
from trainop.runtime.objects.metadata import Json, Unstructured

TRAINING = {"Scheduler": 1, "Server": 1, "Worker": 2}


def mx(roles: dict[str, int], **fields: Any) -> Json:
    return make("MXJob", roles, name="mx", **fields)


@pytest.mark.case("frameworks-v1-33", "a")
def test_environment():
    pods = pods_of(mx(TRAINING))
    assert list(env(pods["mx-worker-1"])) == [
        "MX_CONFIG",
        "DMLC_PS_ROOT_PORT",
        "DMLC_PS_ROOT_URI",
        "DMLC_NUM_SERVER",
        "DMLC_NUM_WORKER",
        "DMLC_ROLE",
        "DMLC_USE_KUBERNETES",
        "DMLC_WORKER_ID",
    ]
    shared = "DMLC_PS_ROOT_PORT=9091 DMLC_PS_ROOT_URI=mx-scheduler-0 DMLC_NUM_SERVER=1 DMLC_NUM_WORKER=2"
    assert line(pods["mx-worker-1"]).partition(" ")[2] == (
        f"{shared} DMLC_ROLE=worker DMLC_USE_KUBERNETES=1 DMLC_WORKER_ID=1"
    )
    assert line(pods["mx-server-0"]).partition(" ")[2] == f"{shared} DMLC_ROLE=server DMLC_USE_KUBERNETES=1"
    assert env(pods["mx-worker-1"])["MX_CONFIG"] == (
        '{"cluster":{"scheduler":[{"url":"mx-scheduler-0","port":9091}],"server":[{"url":"mx-server-0","port":9091}],'
        '"worker":[{"url":"mx-worker-0","port":9091},{"url":"mx-worker-1","port":9091}]},'
        '"labels":{"scheduler":"","server":"","worker":""},"task":{"type":"worker","index":1}}'
    )


def test_counts_of_types_that_there_are_not_are_zero():
    found = env(pods_of(mx({"Scheduler": 1}))["mx-scheduler-0"])
    assert (found["DMLC_NUM_SERVER"], found["DMLC_NUM_WORKER"]) == ("0", "0")


def test_labels_are_written_as_they_are():
    job = mx({"Tuner": 1})
    job["spec"]["mxReplicaSpecs"]["Tuner"]["template"]["metadata"] = {"annotations": {"tuner-server-key": "größer"}}
    assert '"labels":{"tuner":"größer"}' in env(pods_of(job)["mx-tuner-0"])["MX_CONFIG"]


@pytest.mark.case("frameworks-v1-33", "b")
def test_every_server_is_called_master():
    pods = pods_of(mx({**TRAINING, "Server": 2}))
    assert [name for name, pod in pods.items() if JOB_ROLE in pod["metadata"]["labels"]] == [
        "mx-server-0",
        "mx-server-1",
    ]


def test_all_containers_get_the_variables():
    template = {"containers": [{"name": "side", "image": "i"}, {"name": "mxnet", "image": "i"}]}
    pod = pods_of(mx(TRAINING, template=template))["mx-worker-0"]
    assert line(pod, 0) == line(pod, 1)


def test_the_label_of_a_tuner_server_is_an_annotation_of_its_template():
    job = mx({"TunerTracker": 1, "TunerServer": 1, "Tuner": 1})
    job["spec"]["mxReplicaSpecs"]["TunerServer"]["template"]["metadata"] = {
        "annotations": {"tuner-server-key": "2080ti"}
    }
    pods = pods_of(job)
    config = env(pods["mx-tuner-0"])["MX_CONFIG"]
    assert '"labels":{"tuner":"","tunerserver":"2080ti","tunertracker":""}' in config
    assert '"task":{"type":"tuner","index":0}' in config


@pytest.mark.case("frameworks-v1-33", "c")
def test_the_scheduler_decides():
    world = world_of("MXJob", TRAINING, name="mx")
    world.run("mx-scheduler-0")
    world.settle()
    assert world.status["conditions"][-1]["message"] == "MXJob mx is running."
    world.end("mx-scheduler-0", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "MXJobSucceeded")


@pytest.mark.case("frameworks-v1-33", "de")
def test_a_worker_alone():
    pod = pods_of(mx({"Worker": 1}))["mx-worker-0"]
    assert (env(pod)["DMLC_PS_ROOT_PORT"], env(pod)["DMLC_PS_ROOT_URI"]) == ("0", "")
    world = running("MXJob", {"Worker": 1}, name="mx")
    assert world.is_true("Running")
    world.end("mx-worker-0", 0)
    world.settle()
    assert world.is_true("Succeeded")


def test_workers_with_servers_but_without_scheduler_decide_nothing():
    world = running("MXJob", {"Server": 1, "Worker": 1}, name="mx")
    assert world.conditions == [("Created", "True", "MXJobCreated")]


@pytest.mark.case("frameworks-v1-33", "f")
@pytest.mark.parametrize("extra", [{}, {"Scheduler": 1}])
def test_tuning_succeeds_with_the_tuners(extra: dict[str, int]):
    roles = {"TunerTracker": 1, "TunerServer": 1, "Tuner": 2, **extra}
    world = running("MXJob", roles, name="mx", jobMode="MXTune")
    assert world.is_true("Running")
    world.end("mx-tuner-0", 0)
    world.settle()
    assert world.is_true("Running")
    world.end("mx-tuner-1", 0)
    world.settle()
    assert world.conditions[-1] == ("Succeeded", "True", "MXJobSucceeded")


def test_tuners_without_a_scheduler_decide_whatever_the_mode_is_called():
    world = running("MXJob", {"TunerServer": 1, "Tuner": 1}, name="mx", jobMode="MXTrain")
    assert world.is_true("Running")
    world.end("mx-tuner-0", 0)
    world.settle()
    assert world.is_true("Succeeded")


def test_the_failed_text_is_upstreams():
    world = running("MXJob", TRAINING, name="mx")
    world.end("mx-server-0", 1)
    world.settle()
    assert world.status["conditions"][-1]["message"] == Upstream(
        "mxjob mx is failed because 1 Server replica(s) failed."
    )


def test_the_mode_is_a_text():
    (error,) = parse(MXNET, Unstructured(mx({"Worker": 1}, jobMode=1))).errors
    assert str(error) == "spec.jobMode: Invalid value: 1: must be a string"
