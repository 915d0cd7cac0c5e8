"""What the node says of itself: the Node object, and the environment that its containers begin with."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import trainop
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import NetworkMode
from trainop.runtime.client.client import Client
from trainop.runtime.clock import timestamp
from trainop.runtime.errors import AlreadyExistsError
from trainop.runtime.objects.metadata import Json
from trainop.runtime.objects.resource import NODES

NETWORK_ANNOTATION = "trainop.kubeflow.org/network"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_LEFT_OUT = ("KUBERNETES_", "KUBECONFIG")
_NSSWITCH = Path("/etc/nsswitch.conf")
_NAME_CACHE = Path("/run/nscd")

_NSLOOKUP = """#!/bin/sh
# nslookup for pods on machines that have none: only whether a name resolves, and to what.
exec {python} -I -S - "$@" <<'EOF'
import os, socket, sys
names = [word for word in sys.argv[1:] if not word.startswith("-")]
known = os.environ.get("TRAINOP_READY_ADDRESSES")
try:
    found = sorted({{info[4][0] for info in socket.getaddrinfo(names[0], None, socket.AF_INET)}})
    if known is not None and names[0].startswith("127."):
        with open(known) as file:
            found = [address for address in found if address in file.read().split()]
except (OSError, IndexError):
    found = []
if not found:
    print(f"** server can't find {{''.join(names[:1])}}: NXDOMAIN")
    sys.exit(1)
for address in found:
    print(f"Name:\\t{{names[0]}}\\nAddress: {{address}}")
EOF
"""


def describe_network(mode: NetworkMode, why: str) -> str:
    """One sentence for people."""
    if mode == "namespaces":
        return "every pod has a network namespace of its own; Service names resolve there, HTTP and HTTPS lead outside"
    return f"pods share the network of this machine, each with a loopback address of its own ({why})"


def allocatable() -> dict[str, str]:
    """Quantities of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": str(os.cpu_count() or 1), "memory": f"{memory // 1024}Ki", "pods": "1000"}


def node_object(name: str, mode: NetworkMode, why: str, address: str, now: datetime) -> Json:
    """The Node, with its status."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    system = platform.system().lower()
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": system, "kubernetes.io/arch": architecture}
    at = timestamp(now)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": f"pods run as processes of this machine, images are not used; {describe_network(mode, why)}",
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }
    info = {
        "operatingSystem": system,
        "architecture": architecture,
        "kernelVersion": platform.release(),
        "osImage": platform.platform(),
        "containerRuntimeVersion": f"host://{trainop.__version__}-{mode}",
        "kubeletVersion": f"v1.34.0-trainop-{trainop.__version__}",
        "kubeProxyVersion": "",
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {NETWORK_ANNOTATION: mode}},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "capacity": allocatable(),
            "allocatable": allocatable(),
            "conditions": [ready],
            "nodeInfo": info,
        },
    }


async def register(client: Client, node: Json) -> None:
    """Creates the Node or takes over the one that an earlier run left; raises as the client does."""
    name = node["metadata"]["name"]
    try:
        await client.create(NODES, node)
    except AlreadyExistsError:
        await client.patch(NODES, name, None, {"metadata": node["metadata"]})
    await client.patch(NODES, name, None, {"status": node["status"]}, subresource="status")


def container_environment(caller: Mapping[str, str], shims: Path, mode: NetworkMode, ready: Path) -> dict[str, str]:
    """The caller's variables, with the interpreter that runs this first on the path."""
    environment = {name: value for name, value in caller.items() if not name.startswith(_LEFT_OUT)}
    path = [str(Path(sys.executable).parent), *caller.get("PATH", os.defpath).split(os.pathsep)]
    # A real nslookup asks our DNS server; without one the shim must come first.
    path.insert(1 if mode == "addresses" else len(path), str(shims))
    environment["PATH"] = os.pathsep.join(dict.fromkeys(path))
    environment.setdefault("PYTHONUNBUFFERED", "1")  # as images do, so that logs come when they are written
    if mode == "addresses":
        environment["TRAINOP_READY_ADDRESSES"] = str(ready)
    return environment


def write_shims(directory: Path) -> None:
    """Small programs that pods expect and a machine may lack: `nslookup`, and `python` where only `python3` is."""
    directory.mkdir(parents=True, exist_ok=True)
    python = shlex.quote(sys.executable)
    _write_program(directory / "nslookup", _NSLOOKUP.format(python=python))
    for name in ("python", "python3"):
        if shutil.which(name) is None and shutil.which(name, path=Path(sys.executable).parent) is None:
            _write_program(directory / name, f'#!/bin/sh\nexec {python} "$@"\n')


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def common_mounts(directory: Path) -> list[Mount]:
    """Sends name look-ups of pods to files and DNS only: other services of the host would answer for the host."""
    mounts: list[Mount] = []
    directory.mkdir(parents=True, exist_ok=True)
    if _NSSWITCH.exists():
        lines = _NSSWITCH.read_text().splitlines()
        own = directory / "nsswitch.conf"
        kept = [line for line in lines if not line.startswith("hosts:")]
        own.write_text("\n".join([*kept, "hosts: files dns"]) + "\n")
        mounts.append(Mount(str(_NSSWITCH), str(own)))
    if _NAME_CACHE.is_dir():
        empty = directory / "nscd"
        empty.mkdir(exist_ok=True)
        mounts.append(Mount(str(_NAME_CACHE), str(empty)))
    return mounts
