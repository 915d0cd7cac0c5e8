"""Pods as processes in both network modes: environment, termination, and status in the API."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.local.node.world import CONFIG_MAPS, SECRETS, World, container_status, terminated, waiting
from trainop.runtime.errors import ApiError
from trainop.runtime.objects.metadata import NODES, Json

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_pod_runs_to_its_end(world: World) -> None:
    name = await world.start("sh", "-c", "echo hello; echo trouble >&2")
    pod = await world.finish(name)
    status = pod["status"]
    assert status["phase"] == "Succeeded"
    assert pod["spec"]["nodeName"] == "local"
    ended = terminated(pod)
    assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
    assert ended["startedAt"] <= ended["finishedAt"]
    (container,) = status["containerStatuses"]
    assert container["containerID"].startswith("host://")
    assert container["imageID"].startswith("host://")
    assert container["image"] == "example.com/image:1"
    assert status["podIP"] == status["podIPs"][0]["ip"]
    assert sorted((await world.log(name)).splitlines()) == ["hello", "trouble"]
    (event,) = await world.events(name, "ImageNotUsed")
    assert "example.com/image:1" in event["message"]
    assert event["source"]["component"] == "kubelet"
    assert (await world.events(name, "Scheduled"))[0]["source"]["component"] == "default-scheduler"
    assert (await world.events(name, "Started"))[0]["involvedObject"]["fieldPath"] == "spec.containers{main}"


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -9 $$$$", 137), ("kill -TERM $$$$", 143), ("exit 255", 255)]
)
async def test_exit_codes_and_signals(world: World, script: str, code: int) -> None:
    pod = await world.finish(await world.start("sh", "-c", script))
    assert pod["status"]["phase"] == "Failed"
    ended = terminated(pod)
    assert (ended["exitCode"], ended["reason"]) == (code, "Error")


async def test_init_containers_run_in_order_before_all_others(world: World) -> None:
    def step(name: str, text: str) -> Json:
        mounts = [{"name": "v", "mountPath": "/data"}]
        return {"name": name, "image": "i", "command": ["sh", "-c", text], "volumeMounts": mounts}

    spec = {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [step("one", "echo 1 >> /data/f"), step("two", "echo 2 >> /data/f")],
        "containers": [step("a", "cat /data/f; echo a >> /data/a"), step("b", "cat /data/f")],
    }
    name = await world.create(spec)
    pod = await world.finish(name)
    assert pod["status"]["phase"] == "Succeeded"
    assert await world.log(name, "a") == await world.log(name, "b") == "1\n2\n"
    assert [one["ready"] for one in pod["status"]["initContainerStatuses"]] == [True, True]
    ready = [one for one in pod["status"]["conditions"] if one["type"] == "Initialized"]
    assert ready[0]["status"] == "True"


async def test_a_failing_init_container_fails_the_pod(world: World) -> None:
    init = {"name": "first", "image": "i", "command": ["false"]}
    main = {"name": "main", "image": "i", "command": ["true"]}
    pod = await world.finish(await world.create({"initContainers": [init], "containers": [main]}))
    assert pod["status"]["phase"] == "Failed"
    assert terminated(pod, "first")["exitCode"] == 1
    assert waiting(pod) == "PodInitializing"


async def test_an_init_container_is_repeated_on_failure(world: World) -> None:
    script = "test -e /data/again && exit 0; touch /data/again; exit 1"
    mounts = [{"name": "v", "mountPath": "/data"}]
    spec = {
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [{"name": "i", "image": "i", "command": ["sh", "-c", script], "volumeMounts": mounts}],
        "containers": [{"name": "main", "image": "i", "command": ["true"]}],
    }
    pod = await world.finish(await world.create(spec))
    assert pod["status"]["phase"] == "Succeeded"
    assert pod["status"]["initContainerStatuses"][0]["restartCount"] == 1


async def test_a_sidecar_runs_beside_the_containers_and_ends_after_them(world: World) -> None:
    sidecar = {"name": "side", "image": "i", "restartPolicy": "Always", "command": ["sleep", "1000"]}
    main = {"name": "main", "image": "i", "command": ["sh", "-c", "sleep 0.05"]}
    pod = await world.finish(await world.create({"initContainers": [sidecar], "containers": [main]}))
    assert pod["status"]["phase"] == "Succeeded"
    assert terminated(pod, "side")["exitCode"] == 143


async def test_containers_run_at_the_same_time(world: World) -> None:
    mounts = [{"name": "v", "mountPath": "/data"}]

    def partner(own: str, other: str) -> Json:
        script = f"touch /data/{own}; until test -e /data/{other}; do sleep 0.01; done"
        return {"name": own, "image": "i", "command": ["sh", "-c", script], "volumeMounts": mounts}

    spec = {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [partner("a", "b"), partner("b", "a")]}
    assert (await world.finish(await world.create(spec)))["status"]["phase"] == "Succeeded"


async def test_environment_and_arguments(world: World) -> None:
    await world.make(CONFIG_MAPS, "env", data={"lr": "0.1"})
    await world.make(SECRETS, "env", data={"token": base64.b64encode(b"s3cret").decode()})
    main: dict[str, Any] = {
        "command": ["sh", "-c", 'echo "$1|$2|$POD_IP|$token|$(pwd)|$HOSTNAME"', "sh"],
        "args": ["$(LR)-$(MISSING)", "$$(LR)"],
        "env": [
            {"name": "LR", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "lr"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "envFrom": [{"secretRef": {"name": "env"}}],
        "workingDir": "/usr",
    }
    name = await world.create({"containers": [{"name": "main", "image": "i", **main}]}, name="env-pod")
    pod = await world.finish(name)
    address = pod["status"]["podIP"]
    assert await world.log(name) == f"0.1-$(MISSING)|$(LR)|{address}|s3cret|/usr|env-pod\n"


async def test_a_large_environment(world: World) -> None:
    env = [{"name": f"V{number}", "value": "x" * 60000} for number in range(10)]
    name = await world.start("sh", "-c", "echo ${#V0} ${#V9}", main={"env": env})
    await world.finish(name)
    assert await world.log(name) == "60000 60000\n"


async def test_an_environment_that_is_too_large(world: World) -> None:
    name = await world.start("true", main={"env": [{"name": "V", "value": "x" * 200000}]})
    pod = await world.finish(name)
    assert terminated(pod)["message"] == 'exec: "true": Argument list too long'
    assert terminated(pod)["exitCode"] == 128


async def test_an_argument_that_no_process_can_have(world: World) -> None:
    pod = await world.finish(await world.start("echo", "a\0b"))
    assert terminated(pod)["message"] == 'exec: "echo": embedded null byte'


async def test_an_unsupported_pod_is_reported_and_does_not_affect_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> None:
        raise ValueError(f"{text} is beyond me")

    monkeypatch.setattr("trainop.local.node.pods.volumes.exact_amount", fail)
    volume = {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    mount = {"name": "v", "mountPath": "/dev/shm"}
    name = await world.start("true", volumes=[volume], main={"volumeMounts": [mount]})
    pod = await world.until(name, lambda pod: waiting(pod) == "CreateContainerConfigError")
    assert "1Mi is beyond me" in pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    monkeypatch.undo()
    assert (await world.finish(name))["status"]["phase"] == "Succeeded"


async def test_python_is_the_interpreter_that_runs_the_node(world: World) -> None:
    name = await world.start("python", "-c", "import sys, msgspec; print(sys.prefix)")
    await world.finish(name)
    assert await world.log(name) == f"{sys.prefix}\n"


async def test_without_a_working_directory_it_is_the_callers(world: World) -> None:
    name = await world.start("pwd")
    await world.finish(name)
    assert await world.log(name) == f"{Path.cwd()}\n"


@pytest.mark.parametrize(
    ("main", "code", "reason", "message"),
    [
        ({"command": ["no-such-command"]}, 127, "ContainerCannotRun", 'exec: "no-such-command": executable file not'),
        ({"command": ["/no/such/file"]}, 127, "ContainerCannotRun", 'exec: "/no/such/file": no such file'),
        ({"command": ["/etc/hostname"]}, 126, "ContainerCannotRun", 'exec: "/etc/hostname": '),
        ({"command": ["true"], "workingDir": "/no/such"}, 128, "StartError", "working directory '/no/such': does not"),
    ],
)
async def test_a_command_that_cannot_run(world: World, main: Json, code: int, reason: str, message: str) -> None:
    name = await world.start(main=main)
    pod = await world.finish(name)
    assert pod["status"]["phase"] == "Failed"
    ended = terminated(pod)
    assert (ended["exitCode"], ended["reason"]) == (code, reason)
    assert ended["message"].startswith(message)
    (event,) = await world.events(name, "Failed")
    assert message in event["message"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program whose directory a volume can cover."""
    found = tmp_path / "bin" / "program"
    found.parent.mkdir()
    found.write_text("#!/bin/sh\n")
    found.chmod(0o755)
    return found


@pytest.mark.parametrize("through", ["the path", "a symbolic link"])
@pytest.mark.parametrize("what", ["directory", "command", "command on PATH"])
async def test_what_a_volume_hides(isolated: World, program: Path, tmp_path: Path, what: str, through: str) -> None:
    """A checkout below `/tmp` and an emptyDir at `/tmp`, for example."""
    top = str(program.parent)
    if through == "a symbolic link":
        (tmp_path / "link").symlink_to(program.parent)
        program = tmp_path / "link" / program.name
    parts: dict[str, Json] = {
        "directory": {"command": ["true"], "workingDir": str(program.parent / "sub")},
        "command": {"command": [str(program)]},
        "command on PATH": {"command": ["program"], "env": [{"name": "PATH", "value": f"/bin:{program.parent}"}]},
    }
    main = {"volumeMounts": [{"name": "empty", "mountPath": top}], "workingDir": "/"} | parts[what]
    (program.parent / "sub").mkdir()
    name = await isolated.start(volumes=[{"name": "empty", "emptyDir": {}}], main=main)
    ended = terminated(await isolated.finish(name))
    subject = f"working directory '{program.parent}/sub'" if what == "directory" else f'exec: "{main["command"][0]}"'
    assert ended["message"] == f"{subject}: hidden by the volume mounted at {top}"
    assert ended["exitCode"] == (128 if what == "directory" else 127)


async def test_a_directory_that_is_missing_in_a_volume_was_not_hidden(isolated: World) -> None:
    mount = {"name": "empty", "mountPath": "/marks"}
    main = {"command": ["true"], "volumeMounts": [mount], "workingDir": "/marks/missing"}
    name = await isolated.start(volumes=[{"name": "empty", "emptyDir": {}}], main=main)
    message = terminated(await isolated.finish(name))["message"]
    assert message == "working directory '/marks/missing': does not exist on this machine"


async def test_a_container_without_command_says_that_one_is_needed(world: World) -> None:
    container = {"name": "main", "image": "pytorch/pytorch:latest", "args": ["--epochs", "3"]}
    name = await world.create({"containers": [container]})
    pod = await world.until(name, lambda pod: waiting(pod) == "CreateContainerError")
    assert pod["status"]["phase"] == "Pending"
    message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
    assert "state `command`" in message
    assert "pytorch/pytorch:latest" in message
    assert (await world.events(name, "Failed"))[0]["type"] == "Warning"
    await world.delete(name)
    await world.gone(name)


async def test_arguments_alone_are_the_command(world: World) -> None:
    name = await world.create({"containers": [{"name": "main", "image": "i", "args": ["echo", "hello"]}]})
    await world.finish(name)
    assert await world.log(name) == "hello\n"


async def test_a_missing_key_keeps_the_container_waiting_until_it_is_there(world: World) -> None:
    ref = {"configMapKeyRef": {"name": "late", "key": "k"}}
    name = await world.start("sh", "-c", "echo $X", main={"env": [{"name": "X", "valueFrom": ref}]})
    pod = await world.until(name, lambda pod: waiting(pod) == "CreateContainerConfigError")
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == 'configmap "late" not found'
    await world.make(CONFIG_MAPS, "late", data={"k": "v"})
    await world.finish(name)
    assert await world.log(name) == "v\n"


async def test_a_missing_volume_keeps_the_pod_from_starting_until_it_is_there(world: World) -> None:
    volume = {"name": "v", "configMap": {"name": "later"}}
    mounts = [{"name": "v", "mountPath": "/tmp/trainop-test-mount"}]
    name = await world.start("cat", "/tmp/trainop-test-mount/f", volumes=[volume], main={"volumeMounts": mounts})
    (event, *_) = await world.events(name, "FailedMount")
    assert 'configmap "later" not found' in event["message"]
    await world.make(CONFIG_MAPS, "later", data={"f": "content"})
    await world.finish(name)
    assert await world.log(name) == "content"


async def test_a_changed_config_map_is_seen_by_the_running_container(world: World) -> None:
    await world.make(CONFIG_MAPS, "hosts", data={"f": "one"})
    script = "cat /etc/trainop-test/f; echo; until grep -q two /etc/trainop-test/f; do sleep 0.01; done; echo seen"
    volume = {"name": "v", "configMap": {"name": "hosts"}}
    mounts = [{"name": "v", "mountPath": "/etc/trainop-test"}]
    name = await world.start("sh", "-c", script, volumes=[volume], main={"volumeMounts": mounts})
    await world.log_with(name, "one\n")
    await world.client.patch(CONFIG_MAPS, "hosts", "team", {"data": {"f": "two"}})
    assert (await world.finish(name))["status"]["phase"] == "Succeeded"


async def test_restart_policy_on_failure(world: World) -> None:
    script = "echo run; test $(wc -l < /data/f) -ge 3 && exit 0; echo >> /data/f; exit 7"
    mounts = [{"name": "v", "mountPath": "/data"}]
    main = {"command": ["sh", "-c", f"touch /data/f; {script}"], "volumeMounts": mounts}
    name = await world.start(main=main, restartPolicy="OnFailure", volumes=[{"name": "v", "emptyDir": {}}])
    pod = await world.finish(name)
    (container,) = pod["status"]["containerStatuses"]
    assert pod["status"]["phase"] == "Succeeded"
    assert container["restartCount"] == 3
    assert container["lastState"]["terminated"]["exitCode"] == 7
    assert any(waiting(one) == "CrashLoopBackOff" for one in world.seen[name])
    assert all(
        one.get("status", {}).get("phase") in {None, "Pending", "Running", "Succeeded"} for one in world.seen[name]
    )
    assert "restarting failed container" in (await world.events(name, "BackOff"))[0]["message"]


async def test_restart_policy_always_restarts_what_succeeds(world: World) -> None:
    name = await world.start("sh", "-c", "echo run", restartPolicy="Always")

    pod = await world.until(name, lambda pod: container_status(pod).get("restartCount", 0) >= 2)
    assert pod["status"]["phase"] == "Running"
    assert await world.log(name, previous=True) == "run\n"
    await world.delete(name, grace=0)
    await world.gone(name)


async def test_a_deleted_pod_is_asked_to_end(world: World) -> None:
    name = await world.start("sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done")
    await world.log_with(name, "up\n")
    follow = asyncio.ensure_future(world.log(name, follow=True))
    await asyncio.sleep(0)
    await world.delete(name)
    await world.gone(name)
    assert await follow == "up\nbye\n"
    assert await world.events(name, "Killing")
    last = [one for one in world.seen[name] if not one.get("gone")][-1]
    assert terminated(last)["exitCode"] == 0


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(isolated: World) -> None:
    name = await isolated.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done")
    await isolated.log_with(name, "up\n")
    await isolated.delete(name, grace=1)
    await isolated.gone(name)
    last = [one for one in isolated.seen[name] if not one.get("gone")][-1]
    assert terminated(last)["exitCode"] == 137
    assert not isolated.node._logs.find(last["metadata"], "main", previous=False), "its directory is removed"


async def test_a_second_deletion_may_hasten_the_first(isolated: World) -> None:
    name = await isolated.start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done")
    await isolated.log_with(name, "up\n")
    await isolated.delete(name)
    await isolated.events(name, "Killing")
    await isolated.delete(name, grace=0)
    await isolated.gone(name)


async def test_a_pod_deleted_before_it_could_start(world: World) -> None:
    volume = {"name": "v", "secret": {"secretName": "never"}}
    name = await world.start("true", volumes=[volume])
    await world.events(name, "FailedMount")
    await world.delete(name)
    await world.gone(name)


async def test_before_the_end_a_hook_runs(world: World) -> None:
    main = {
        "command": ["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.01; done"],
        "volumeMounts": [{"name": "v", "mountPath": "/tmp/trainop-hook"}],
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo stopped > /tmp/trainop-hook/f"]}}},
    }
    reported = world.directory / "hook"
    volume = {"name": "v", "hostPath": {"path": str(reported), "type": "DirectoryOrCreate"}}
    if world.node.network == "addresses":  # without mounts, the hook's own words cannot be replaced
        main["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", f"echo stopped > {reported}/f"]}}}
    name = await world.start(main=main, volumes=[volume])
    await world.log_with(name, "up\n")
    await world.delete(name)
    await world.gone(name)
    assert (reported / "f").read_text() == "stopped\n"


async def test_the_deadline_of_a_pod(isolated: World) -> None:
    name = await isolated.start("sleep", "1000", activeDeadlineSeconds=1)
    pod = await isolated.finish(name)
    assert pod["status"]["phase"] == "Failed"
    assert pod["status"]["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize(
    ("script", "fields", "message"),
    [
        ("echo -n note > /dev/termination-log; exit 1", {}, "note"),
        ("echo -n note > /tmp/trainop-note", {"terminationMessagePath": "/tmp/trainop-note"}, "note"),
        ("echo last words; exit 1", {"terminationMessagePolicy": "FallbackToLogsOnError"}, "last words\n"),
        ("echo last words; exit 0", {"terminationMessagePolicy": "FallbackToLogsOnError"}, ""),
        ("echo last words; exit 1", {}, ""),
    ],
)
async def test_termination_messages(world: World, script: str, fields: Json, message: str) -> None:
    pod = await world.finish(await world.start("sh", "-c", script, main={"command": ["sh", "-c", script], **fields}))
    assert terminated(pod).get("message", "") == message


async def test_a_fifo_in_the_place_of_the_message_blocks_nothing(sharing: World) -> None:
    path = "/dev/termination-log"
    pod = await sharing.finish(await sharing.start("sh", "-c", f"rm {path}; mkfifo {path} || exit 9; exit 3"))
    assert terminated(pod)["exitCode"] == 3
    assert "message" not in terminated(pod)


def exec_probe(script: str, **fields: Any) -> Json:
    return {"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, **fields}


async def test_a_readiness_probe_decides_when_a_pod_is_ready(isolated: World) -> None:
    gate = isolated.directory / "gate"
    main = {"command": ["sleep", "1000"], "readinessProbe": exec_probe(f"test -e {gate}")}
    name = await isolated.start(main=main)
    pod = await isolated.running(name)
    assert not pod["status"]["containerStatuses"][0]["ready"]
    await isolated.events(name, "Unhealthy")
    gate.touch()
    await isolated.until(name, lambda pod: pod["status"]["containerStatuses"][0]["ready"])
    await isolated.delete(name, grace=0)
    await isolated.gone(name)


async def test_a_failed_liveness_probe_restarts_the_container(isolated: World) -> None:
    main = {"command": ["sleep", "1000"], "livenessProbe": exec_probe("false", failureThreshold=1)}
    name = await isolated.start(main=main, restartPolicy="Always")
    pod = await isolated.until(
        name, lambda pod: (pod["status"].get("containerStatuses") or [{}])[0].get("restartCount", 0) > 0
    )
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 143
    assert "failed liveness probe" in (await isolated.events(name, "Killing"))[0]["message"]
    await isolated.delete(name, grace=0)
    await isolated.gone(name)


async def test_network_probes(world: World) -> None:
    main = {
        "command": ["sh", "-c", "exec python -m http.server --bind $IP 8181"],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "web", "containerPort": 8181}],
        "workingDir": "/usr",
        "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 10_000},
        "readinessProbe": {"httpGet": {"port": 8181, "path": "/"}, "periodSeconds": 1},
    }
    name = await world.start(main=main)
    pod = await world.until(name, lambda pod: container_status(pod).get("ready", False))
    assert pod["status"]["containerStatuses"][0]["started"]
    await world.delete(name, grace=0)
    await world.gone(name)


async def test_fifty_pods_at_once(isolated: World) -> None:
    names = [await isolated.start("sh", "-c", "echo $HOSTNAME") for _ in range(50)]
    for name in names:
        assert (await isolated.finish(name))["status"]["phase"] == "Succeeded"
    assert [await isolated.log(name) for name in names] == [f"{name}\n" for name in names]


async def test_why_there_is_no_log(world: World) -> None:
    name = await world.start("true", volumes=[{"name": "v", "secret": {"secretName": "never"}}])
    await world.events(name, "FailedMount")
    with pytest.raises(ApiError, match="is waiting to start: ContainerCreating") as error:
        world.node.open_log("team", name, "main")
    assert error.value.code == 400
    with pytest.raises(ApiError, match="container other is not valid for pod"):
        world.node.open_log("team", name, "other")
    with pytest.raises(ApiError, match="previous terminated container"):
        world.node.open_log("team", name, "main", previous=True)
    with pytest.raises(ApiError, match="not found"):
        world.node.open_log("team", "nobody", "main")
    await world.delete(name, grace=0)
    await world.gone(name)


async def test_a_gated_pod_waits_for_its_scheduler(world: World) -> None:
    name = await world.start("true", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    other = await world.start("true")
    await world.finish(other)
    assert all("nodeName" not in pod["spec"] for pod in world.seen[name])
    await world.delete(name, grace=0)
    await world.gone(name)


async def test_the_node_says_what_it_is(world: World) -> None:
    node = await world.client.get(NODES, "local")
    assert node["metadata"]["annotations"]["trainop.kubeflow.org/network"] == world.node.network
    (ready,) = node["status"]["conditions"]
    assert (ready["type"], ready["status"]) == ("Ready", "True")
    assert "images are not used" in ready["message"]
    assert node["status"]["capacity"]["cpu"] == str(os.cpu_count())
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "local"


async def test_a_volume_can_cover_the_directory_of_the_node(isolated: World) -> None:
    """As an emptyDir at `/tmp` does if the cluster's directory is a temporary one."""
    top = str(Path("/", isolated.directory.parts[1]))
    name = await isolated.start(
        "sh",
        "-c",
        f"ls {top}; cat /etc/hosts",
        volumes=[{"name": "empty", "emptyDir": {}}],
        main={"volumeMounts": [{"name": "empty", "mountPath": top}], "workingDir": "/"},
    )
    pod = await isolated.finish(name)
    assert pod["status"]["phase"] == "Succeeded", pod["status"]
    assert (await isolated.log(name)).startswith("127.0.0.1\tlocalhost\n")
