"""Containers that a real podman runs, from images that are made here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.local.node.world import CONFIG_MAPS, SECRETS, container_status, terminated
from tests.local.podman.conftest import IMAGE, IMAGE_WITH_PYTHON, Engine, Pods
from tests.patience import PATIENCE
from trainop.runtime.objects.metadata import NODES

pytestmark = pytest.mark.asyncio(loop_scope="session")
HOSTILE = "two\nlines, \"quotes\" $HOME 'and' a=b #c "


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110  # nothing tells of processes of others
            await asyncio.sleep(0.05)


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return found


async def test_the_image_is_used(node: Pods, engine: Engine) -> None:
    """Entry point, arguments, variables and folder of the image, and its ID in the status."""
    pod = await node.finish(await node.launch())
    status = container_status(pod)
    assert await node.log(pod["metadata"]["name"]) == "entry by default\n"
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (0, "Completed")
    assert status["image"] == IMAGE
    digest = engine.call("image", "inspect", "--format", "{{.Digest}}", IMAGE).strip()
    assert status["imageID"] == f"localhost/trainop-test@{digest}"
    assert status["containerID"].startswith("podman://")
    assert (await node.client.get(NODES, "local"))["status"]["nodeInfo"]["containerRuntimeVersion"].startswith(
        "podman://"
    )


@pytest.mark.parametrize(
    ("fields", "printed"),
    [
        ({"args": ["--like", "$(GREETING)", "-x"]}, "entry --like $(GREETING) -x\n"),
        ({"args": ["$(MINE)"], "env": [{"name": "MINE", "value": "yours"}]}, "entry yours\n"),
        ({"command": ["sh", "-c", "echo $GREETING; pwd; echo $0 $1"], "args": ["a", "b"]}, "hello\n/tmp\na b\n"),
        ({"command": ["sh", "-c", "pwd"], "workingDir": "/bin"}, "/bin\n"),
        ({"command": ["sh", "-c", "echo $HOME"], "env": [{"name": "HOME", "value": "/a b"}]}, "/a b\n"),
        ({"command": ["sh", "-c", "echo $PATH"], "env": [{"name": "PATH", "value": "/bin:/zz"}]}, "/bin:/zz\n"),
    ],
)
async def test_command_and_arguments_are_those_of_kubernetes(node: Pods, fields: Any, printed: str) -> None:
    name = await node.launch(**fields)
    await node.finish(name)
    assert await node.log(name) == printed


async def test_variables_of_any_content_arrive_and_are_seen_by_nobody_else(node: Pods) -> None:
    secret = f"secret-{os.getpid()}-{HOSTILE}"
    env = [{"name": "TOKEN", "value": secret}, {"name": "A.b-c", "value": "odd"}]
    script = "import os, time\nprint(os.environ['TOKEN'] + os.environ['A.b-c'], flush=True)\ntime.sleep(1000)"
    name = await node.launch("python", "-c", script, env=env, image=IMAGE_WITH_PYTHON)
    assert await node.log_with(name, "odd\n") == f"{secret}odd\n"
    assert not [each for each in command_lines() if f"secret-{os.getpid()}" in each]
    await node.delete(name, 0)
    await node.gone(name)


async def test_nothing_of_this_machine_is_in_a_container(node: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_CALLER", "secret")
    name = await node.launch("sh", "-c", "env; ls /")
    await node.finish(name)
    found = await node.log(name)
    assert "TOKEN_OF_CALLER" not in found
    assert "root" not in found.split(), "a folder of this machine"


@pytest.mark.parametrize(("code", "reason"), [(0, "Completed"), (3, "Error"), (125, "Error"), (127, "Error")])
async def test_exit_codes_are_those_of_the_command(node: Pods, code: int, reason: str) -> None:
    pod = await node.finish(await node.launch("sh", "-c", f"exit {code}"))
    assert (terminated(pod)["exitCode"], terminated(pod)["reason"]) == (code, reason)


async def test_a_signal_that_ends_a_container_is_its_exit_code(node: Pods) -> None:
    pod = await node.finish(await node.launch("sh", "-c", "sh -c 'kill -9 $$$$'; exit $?"))
    assert terminated(pod)["exitCode"] == 137


@pytest.mark.parametrize(
    ("fields", "code", "reason", "said"),
    [
        ({"command": ["not-there"]}, 127, "ContainerCannotRun", "not-there"),
        ({"command": ["/etc/passwd"]}, 126, "ContainerCannotRun", "/etc/passwd"),
        ({"command": ["true"], "securityContext": {"runAsNonRoot": True}}, 128, "StartError", "runAsNonRoot"),
    ],
)
async def test_a_container_that_cannot_start_says_why(
    node: Pods, fields: Any, code: int, reason: str, said: str
) -> None:
    name = await node.launch(**fields)
    pod = await node.finish(name)
    ended = terminated(pod)
    if os.geteuid() != 0 and "no logs from conmon" in ended["message"]:
        pytest.skip("podman 4.3 loses what runc says to an ordinary user")
    assert (ended["exitCode"], ended["reason"]) == (code, reason), ended
    assert said in ended["message"]
    assert said in (await node.events(name, "Failed"))[0]["message"]


async def test_volumes_are_mounted_for_the_user_of_the_container(node: Pods, tmp_path: Path) -> None:
    odd = tmp_path / "a,b c"
    odd.mkdir()
    (odd / "file").write_text("from here")
    await node.make(CONFIG_MAPS, "settings", data={"key": "value"})
    await node.make(SECRETS, "keys", data={"key": "dmFsdWU="})
    volumes: list[Any] = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o444}},
        {"name": "shared", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "odd", "hostPath": {"path": str(odd)}},
    ]
    mounts: list[Any] = [{"name": each["name"], "mountPath": f"/volumes/{each['name']}"} for each in volumes]
    mounts[-1] |= {"mountPath": "/volumes/x,y", "readOnly": True}
    script = (
        "cd /volumes; cat settings/key keys/key shared/file x,y/file && echo && touch memory/file && "
        "! touch x,y/other 2>/dev/null && ! touch settings/other 2>/dev/null && id -u && "
        "echo said > /dev/termination-log"
    )
    user = {"runAsUser": 1000, "runAsGroup": 1000}
    first = node.container("sh", "-c", "echo -n left > /volumes/shared/file", name="first")
    main = node.container("sh", "-c", script)
    for each in (first, main):
        each |= {"volumeMounts": mounts, "securityContext": user}
    spec = {"volumes": volumes, "initContainers": [first], "containers": [main]}
    name = await node.create(spec)
    pod = await node.finish(name)
    assert await node.log(name) == "valuevalueleftfrom here\n1000\n"
    assert terminated(pod)["message"] == "said\n"


async def test_the_security_context_counts(node: Pods) -> None:
    context = {
        "runAsUser": 1000,
        "runAsGroup": 7,
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    script = (
        "id -u; id -g; id -G; touch /tmp/x 2>/dev/null || echo read-only; grep -E 'CapBnd|NoNewPrivs' /proc/self/status"
    )
    spec = {"securityContext": {"supplementalGroups": [9], "fsGroup": 11}}
    name = await node.launch("sh", "-c", script, securityContext=context, spec=spec)
    await node.finish(name)
    user, group, groups, root, bounds, privileges = (await node.log(name)).splitlines()
    assert (user, group, root) == ("1000", "7", "read-only")
    assert {"7", "9", "11"} <= set(groups.split())
    assert int(bounds.split()[1], 16) == 0
    assert privileges.split()[1] == "1"


async def test_output_of_any_size_is_complete(node: Pods) -> None:
    name = await node.launch("sh", "-c", "seq 1 200000; seq 1 1000 >&2")
    await node.finish(name)
    lines = (await node.log(name)).splitlines()
    assert len(lines) == 201000
    assert lines.count("200000") == 1


async def test_pods_have_their_addresses_and_names(pods: Pods) -> None:
    """In each mode of the network, one pod reaches another by the name of a Service."""
    from trainop.runtime.objects.metadata import SERVICES  # noqa: PLC0415  # beside its only use

    await pods.make(SERVICES, "server", spec={"clusterIP": "None", "selector": {"app": "server"}})
    program = (
        "import os, socket\ns = socket.create_server((os.environ['ADDRESS'], 4321))\n"
        "while True:\n c, _ = s.accept()\n c.sendall(socket.gethostname().encode())\n c.close()"
    )
    address = {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    server = pods.container("python", "-c", program, image=IMAGE_WITH_PYTHON, env=[address])
    await pods.create({"containers": [server], "hostname": "the-server"}, name="server-pod", labels={"app": "server"})
    await pods.running("server-pod")
    ask = (
        "import socket, sys, time\n"
        "for _ in range(200):\n"
        " try: s = socket.create_connection((sys.argv[1], 4321))\n"
        " except OSError: time.sleep(0.1)\n"
        " else: print(s.recv(100).decode()); break\n"
    )
    name = await pods.launch("python", "-c", ask, "server", image=IMAGE_WITH_PYTHON)
    await pods.finish(name)
    assert await pods.log(name) == "the-server\n"
    await pods.delete("server-pod", 0)
    await pods.gone("server-pod")


async def test_sigterm_then_the_grace_period_then_sigkill(node: Pods, engine: Engine) -> None:
    obedient = await node.launch("sh", "-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    stubborn = await node.launch("sh", "-c", "trap 'echo no' TERM; echo ready; while :; do sleep 0.1; done")
    for name in (obedient, stubborn):
        await node.log_with(name, "ready")
    assert len([each for each in engine.containers() if obedient in each or stubborn in each]) == 2
    await node.delete(obedient, 1000)
    await node.delete(stubborn, 1)
    for name in (obedient, stubborn):
        await node.gone(name)
    ends = [terminated(each) for each in node.seen[obedient] if "terminated" in str(each.get("status"))]
    assert {each["exitCode"] for each in ends} <= {7}
    await until(lambda: not [each for each in engine.containers() if obedient in each or stubborn in each])


async def test_commands_in_a_container(node: Pods) -> None:
    name = await node.launch("sh", "-c", "echo ready; sleep 1000", env=[{"name": "MINE", "value": "yes"}])
    await node.log_with(name, "ready")
    async with node.node.open_exec(
        "team", name, "main", ["sh", "-c", "cat; echo $MINE; exit 5"], stdin=True
    ) as session:
        await session.write(b"from stdin\n")
        session.end_input()
        text = b""
        while data := await session.read("stdout"):
            text += data
        assert (text, (await session.wait()).code) == (b"from stdin\nyes\n", 5)
    async with node.node.open_exec("team", name, "main", ["sleep", "987654"]) as session:
        await until(lambda: any("987654" in each and each.startswith("sleep") for each in command_lines()))
    await until(lambda: not any("987654" in each for each in command_lines()))
    await node.delete(name, 0)
    await node.gone(name)


async def test_a_terminal_has_the_size_of_the_clients(node: Pods) -> None:
    name = await node.launch("python", "-c", "print('ready', flush=True); import time; time.sleep(1000)",
                             image=IMAGE_WITH_PYTHON)  # fmt: skip
    await node.log_with(name, "ready")
    ask = "import os, sys\nfor _ in sys.stdin: print('size', *os.get_terminal_size(), flush=True)"
    command = ["python", "-c", ask]
    async with node.node.open_exec("team", name, "main", command, stdin=True, tty=True) as session:
        session.resize(101, 33)
        text = b""
        async with asyncio.timeout(PATIENCE):
            while b"size 101 33" not in text:
                await session.write(b"\n")
                text += await session.read("stdout")
    await node.delete(name, 0)
    await node.gone(name)


async def test_a_probe_runs_in_the_container_and_leaves_nothing(node: Pods) -> None:
    """A probe that does not end in time has failed, and its command is gone."""
    probe = {"exec": {"command": ["sh", "-c", "[ -e /tmp/ready ] || sleep 876543"]}, "timeoutSeconds": 1}
    name = await node.launch("sh", "-c", "sleep 1000", readinessProbe=probe)
    assert "timed out" in (await node.events(name, "Unhealthy"))[0]["message"]
    async with node.node.open_exec("team", name, "main", ["touch", "/tmp/ready"]) as session:
        assert (await session.wait()).code == 0
    await node.until(name, lambda pod: container_status(pod).get("ready", False))
    await until(lambda: not any("876543" in each and each.startswith("sleep") for each in command_lines()))
    await node.delete(name, 0)
    await node.gone(name)


async def test_a_container_restarts_in_its_pod(node: Pods) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    script = "echo x >> /data/f; [ $(grep -c x /data/f) -gt 2 ] || exit 3"
    spec = {"restartPolicy": "OnFailure", "volumes": [{"name": "v", "emptyDir": {}}]}
    pod = await node.finish(await node.launch("sh", "-c", script, **mount, spec=spec))
    assert pod["status"]["phase"] == "Succeeded"
    assert container_status(pod)["restartCount"] == 2


async def test_all_containers_restart_in_place(node: Pods, engine: Engine) -> None:
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [77]}}]
    mounts = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    script = "echo main >> /data/f; [ $(grep -c main /data/f) -gt 1 ] || exit 77"
    main = node.container("sh", "-c", script, restartPolicy="Never", restartPolicyRules=rules, **mounts)
    other = node.container("sh", "-c", "[ $(grep -c first /data/f) -gt 1 ] || sleep 1000", name="other", **mounts)
    first = node.container("sh", "-c", "echo first >> /data/f", name="first", **mounts)
    spec = {"volumes": [{"name": "v", "emptyDir": {}}], "initContainers": [first], "containers": [main, other]}
    name = await node.create(spec)
    pod = await node.finish(name)
    assert pod["status"]["phase"] == "Succeeded"
    assert [each["restartCount"] for each in pod["status"]["containerStatuses"]] == [1, 1]
    await until(lambda: not [each for each in engine.containers() if name in each])


async def test_a_native_sidecar_runs_as_long_as_the_others(node: Pods) -> None:
    sidecar = node.container(
        "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done", name="side", restartPolicy="Always"
    )
    name = await node.create({"initContainers": [sidecar], "containers": [node.container("true")]})
    pod = await node.finish(name)
    assert pod["status"]["phase"] == "Succeeded"
    assert terminated(pod, "side")["exitCode"] == 0


async def test_what_a_container_uses_is_measured(node: Pods) -> None:
    name = await node.launch("python", "-c", "x = b'1' * 60_000_000\nprint('ready', flush=True)\nwhile True: pass",
                             image=IMAGE_WITH_PYTHON)  # fmt: skip
    await node.log_with(name, "ready")
    used, _ = await node.node.usage()
    uid = (await node.running(name))["metadata"]["uid"]
    (amounts,) = used[uid].values()
    assert amounts.memory > 60_000_000
    assert amounts.cores > 0
    await node.delete(name, 0)
    await node.gone(name)


async def test_more_memory_than_the_limit_is_an_end_with_a_reason(node: Pods, engine: Engine) -> None:
    script = "x = []\nfor _ in range(600): x.append(b'1' * 1_000_000)"
    control = ["--memory=40m", "--memory-swap=40m", "--network=host", "--entrypoint=python", "--name=control"]
    with pytest.raises(AssertionError):
        engine.call("run", *control, IMAGE_WITH_PYTHON, "-c", script)
    known = engine.call("inspect", "--format", "{{.State.OOMKilled}}", "control").strip()
    engine.call("rm", "control")
    limits = {"resources": {"limits": {"memory": "40Mi"}}}
    pod = await node.finish(await node.launch("python", "-c", script, image=IMAGE_WITH_PYTHON, **limits))
    assert terminated(pod)["exitCode"] == 137
    assert terminated(pod)["reason"] == ("OOMKilled" if known == "true" else "Error"), "as podman says"
