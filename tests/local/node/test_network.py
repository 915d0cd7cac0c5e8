"""The network of pods in each mode: addresses, name resolution and isolation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.local.node.world import SERVICES, World, container_status
from trainop.local.node.network.host_network import forwarded_ports
from trainop.local.node.sandbox.bridge import HUB_ADDRESS, HUB_HARDWARE_ADDRESS
from trainop.runtime.objects.metadata import Json

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERVER = """
import os, socket, sys
with socket.create_server((sys.argv[1], 23456)) as server:
    print("up", flush=True)
    for _ in range(int(sys.argv[2])):
        peer, _ = server.accept()
        with peer:
            peer.sendall(os.environ["HOSTNAME"].encode())
"""
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 23456), timeout=60) as peer:
    print(peer.recv(100).decode())
"""
OWN_IP = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def existing(*paths: str) -> list[str]:
    return [path for path in paths if Path(path).exists()]


async def make_service(world: World, name: str, **spec: Any) -> None:
    spec = {"clusterIP": "None", "ports": [{"port": 23456}], "selector": {"app": name}, **spec}
    await world.make(SERVICES, name, spec=spec)


async def start_labelled(world: World, name: str, *argv: str, **main: Any) -> str:
    container = {"name": "main", "image": "i", "command": list(argv), **main}
    return await world.create({"containers": [container]}, name=name, labels={"app": name})


async def start_server(world: World, name: str, address: str) -> Json:
    await make_service(world, name)
    await start_labelled(world, name, "python", "-c", SERVER, address, "1", env=OWN_IP)
    await world.log_with(name, "up\n")
    return await world.until(name, lambda pod: container_status(pod).get("ready", False))


async def test_pods_on_the_same_port_are_both_reached_by_name(world: World) -> None:
    everywhere = world.node.network == "namespaces"
    servers = ["serve-a", "serve-b"]
    pods = [await start_server(world, name, "0.0.0.0" if everywhere else "$(IP)") for name in servers]
    assert len({pod["status"]["podIP"] for pod in pods}) == 2
    for server in servers:
        client = await world.start("python", "-c", CLIENT, server)
        await world.finish(client)
        assert await world.log(client) == f"{server}\n"
        await world.finish(server)


async def test_a_service_is_found_only_once_its_pod_is_ready(world: World) -> None:
    """The init container of a worker waits: `nslookup` of its master fails until the master is ready.

    Where names are written out as addresses, the worker must know its master as a pod of the same job.
    """
    script = "nslookup late-master-0 || echo not yet; until nslookup late-master-0 >/dev/null 2>&1; do sleep 0.02; done"
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "late", "uid": "u", "controller": True}
    container = {"name": "main", "image": "i", "command": ["sh", "-c", script]}
    waiter = await world.create({"containers": [container]}, ownerReferences=[owner])
    assert "not yet" in await world.log_with(waiter, "not yet")
    await make_service(world, "late-master-0")
    await start_labelled(world, "late-master-0", "sleep", "1000")
    assert (await world.finish(waiter))["status"]["phase"] == "Succeeded"
    await world.delete("late-master-0", grace=0)
    await world.gone("late-master-0")


async def test_a_master_that_has_ended_is_found_by_a_worker_that_starts_late(world: World) -> None:
    """Its init container would wait until its tries are used up, and its rank would never run."""
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "quick", "uid": "u", "controller": True}
    await make_service(world, "quick-master-0")
    master = await start_labelled(world, "quick-master-0", "true")
    await world.finish(master)
    container = {"name": "main", "image": "i", "command": ["sh", "-c", "nslookup quick-master-0"]}
    waiter = await world.create({"containers": [container]}, ownerReferences=[owner])
    assert (await world.finish(waiter))["status"]["phase"] == "Succeeded", await world.log(waiter)


ASK_HUB = f"""
import socket
with socket.create_connection(("{HUB_ADDRESS}", 53)):
    print([line.split()[3] for line in open("/proc/net/arp") if line.startswith("{HUB_ADDRESS} ")])
"""


async def test_the_hub_keeps_its_hardware_address_as_pods_come_and_go(isolated: World) -> None:
    """A bridge without its own MAC address takes the lowest one of its ports, which breaks pods that cached another."""
    for _ in range(3):
        neighbours = [await isolated.start("sleep", "1000") for _ in range(3)]
        pod = await isolated.start("python", "-c", ASK_HUB)
        await isolated.finish(pod)
        assert await isolated.log(pod) == f"['{HUB_HARDWARE_ADDRESS}']\n"
        for neighbour in neighbours:
            await isolated.delete(neighbour, grace=0)
            await isolated.gone(neighbour)


@pytest.mark.parametrize("form", ["named", "named.team", "named.team.svc", "named.team.svc.cluster.local"])
async def test_all_forms_of_a_services_name(isolated: World, form: str) -> None:
    if "named" not in isolated.seen:
        await make_service(isolated, "named")
        await start_labelled(isolated, "named", "sleep", "1000")
        await isolated.until("named", lambda pod: container_status(pod).get("ready", False))
    address = isolated.seen["named"][-1]["status"]["podIP"]
    script = "import socket, sys; print(socket.gethostbyname(sys.argv[1]))"
    name = await isolated.start("python", "-c", script, form)
    await isolated.finish(name)
    assert await isolated.log(name) == f"{address}\n"


async def test_a_pod_knows_its_own_name(isolated: World) -> None:
    script = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
    name = await isolated.start("python", "-c", script)
    pod = await isolated.finish(name)
    assert await isolated.log(name) == f"{name} {pod['status']['podIP']}\n"


async def test_names_that_do_not_exist(isolated: World) -> None:
    script = "import socket\ntry: socket.gethostbyname('example.com')\nexcept OSError as e: print(e)"
    name = await isolated.start("python", "-c", script)
    await isolated.finish(name)
    assert "Name or service not known" in await isolated.log(name)


async def test_many_addresses_come_over_tcp(isolated: World) -> None:
    await make_service(isolated, "crowd")
    names = [f"crowd-{number}" for number in range(32)]
    for name in names:
        container = {"name": "main", "image": "i", "command": ["sleep", "1000"]}
        await isolated.create({"containers": [container]}, name=name, labels={"app": "crowd"})
    for name in names:
        await isolated.until(name, lambda pod: container_status(pod).get("ready", False))
    script = "import socket; print(len({a[4] for a in socket.getaddrinfo('crowd', 80, socket.AF_INET)}))"
    asker = await isolated.start("python", "-c", script)
    await isolated.finish(asker)
    assert await isolated.log(asker) == "32\n"
    for name in names:
        await isolated.delete(name, grace=0)
    await asyncio.gather(*(isolated.gone(name) for name in names))


async def test_pods_with_namespaces_see_only_their_own_processes(isolated: World) -> None:
    name = await isolated.start("sh", "-c", "ls -d /proc/[0-9]* | wc -l; echo $PPID; echo $$$$")
    await isolated.finish(name)
    seen, parent, own = (await isolated.log(name)).split()
    assert int(seen) <= 5
    assert int(parent) == 1, "the init of the container"
    assert 1000 <= int(own) < 31_100, "the PIDs of containers begin at a random number"


async def test_mount_points_that_do_not_exist_leave_no_trace(isolated: World) -> None:
    targets = ["/trainop-test/deep", "/etc/trainop-test/deep", "/dev/shm"]
    mounts = [{"name": "v", "mountPath": target, "subPath": str(n)} for n, target in enumerate(targets)]
    script = f"for d in {' '.join(targets)}; do echo x > $d/file || exit 1; done; ls /etc/passwd /usr /dev/null"
    volumes = [{"name": "v", "emptyDir": {}}]
    name = await isolated.start("sh", "-c", script, volumes=volumes, main={"volumeMounts": mounts})
    pod = await isolated.finish(name)
    assert pod["status"]["phase"] == "Succeeded", await isolated.log(name)
    assert existing("/trainop-test", "/etc/trainop-test", "/dev/shm/file") == []


async def test_read_only_mounts_are_read_only(isolated: World) -> None:
    path = isolated.directory / "precious"
    path.mkdir()
    volume = {"name": "v", "hostPath": {"path": str(path)}}
    mounts = [{"name": "v", "mountPath": "/precious", "readOnly": True}]
    name = await isolated.start("touch", "/precious/x", volumes=[volume], main={"volumeMounts": mounts})
    await isolated.finish(name)
    assert "Read-only file system" in await isolated.log(name)
    assert not list(path.iterdir())


REACH = """
import socket, sys
try:
    peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
except OSError as error:
    sys.exit(print(type(error).__name__))
try:
    peer.sendall(b"hello")
    peer.shutdown(socket.SHUT_WR)
    answer = peer.recv(100)
except OSError:
    answer = b"nothing"
print("got", answer.decode() or "nothing")
"""


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("web.example", "443", "got olleh"),
        ("192.0.2.80", "443", "got olleh"),
        ("192.0.2.80", "80", "got nothing"),
        ("192.0.2.80", "8443", "ConnectionRefusedError"),
        ("10.244.0.1", "443", "got nothing"),
        ("nowhere.example", "443", "gaierror"),
    ],
    ids=["by name", "by address", "nobody there", "port not carried", "the hub itself", "no such name"],
)
async def test_the_way_out(isolated: World, host: str, port: str, said: str) -> None:
    name = await isolated.start("python", "-c", REACH, host, port)
    await isolated.finish(name)
    assert await isolated.log(name) == f"{said}\n"


async def test_ports_of_the_callers_proxies_are_carried() -> None:
    environment = {"HTTPS_PROXY": "http://proxy.example:3128", "http_proxy": "proxy.example:8080", "no_proxy": "x:1"}
    assert forwarded_ports(environment) == [80, 443, 8080, 3128]
    assert forwarded_ports({}) == [80, 443]
