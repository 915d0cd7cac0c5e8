"""Node registration: the Node object and its status, and the base environment and shared files of all containers."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

import trainop
from trainop.local import KUBERNETES
from trainop.local.node.devices import GPU
from trainop.local.node.pods.containers import READY, Containers, Defaults
from trainop.local.node.pods.service_account import EXPOSED_ADDRESS, SERVICE_ADDRESS
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import NetworkMode
from trainop.runtime import NODES, AlreadyExistsError, Client, Json
from trainop.runtime.lowlevel import timestamp

NETWORK_ANNOTATION = "trainop.kubeflow.org/network"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_SERVICES = (SERVICE_ADDRESS, EXPOSED_ADDRESS)
_EXCLUDED_VARIABLES = ("KUBERNETES_", "KUBECONFIG")
_NSSWITCH = Path("/etc/nsswitch.conf")
_SSHD, _SSHD_DIRECTORY = Path("/usr/sbin/sshd"), Path("/run/sshd")
_NSCD_DIRECTORY = Path("/run/nscd")

_NSLOOKUP = """#!/bin/sh
# Replaces a missing nslookup: prints whether a name resolves, and its IPv4 addresses.
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
    """One sentence for the log and the Node's Ready condition; `why` is the reason for mode `addresses`."""
    if mode == "namespaces":
        return "every pod has its own network namespace; Service names resolve, outbound HTTP and HTTPS are forwarded"
    return f"pods share the network of this machine, each with its own loopback address ({why})"


def allocatable(directory: Path, gpus: int) -> dict[str, str]:
    """Capacity of this machine as Kubernetes quantities; the storage is that of the disk with `directory`."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "cpu": str(os.cpu_count() or 1),
        "ephemeral-storage": f"{shutil.disk_usage(directory).total // 1024}Ki",
        "memory": f"{memory // 1024}Ki",
        "pods": "1000",
    }
    return found | ({GPU: str(gpus)} if gpus else {})


def node_object(
    name: str,
    mode: NetworkMode,
    why: str,
    address: str,
    *,
    containers: Containers,
    capacity: Mapping[str, str],
    now: datetime,
) -> Json:
    """The Node object with its status; `address` becomes the InternalIP."""
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    system = platform.system().lower()
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": system, "kubernetes.io/arch": architecture}
    now_text = timestamp(now)
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ready |= {"message": f"{containers.description}; {describe_network(mode, why)}"}
    ready |= dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), now_text)
    info = {
        "operatingSystem": system,
        "architecture": architecture,
        "kernelVersion": platform.release(),
        "osImage": platform.platform(),
        "containerRuntimeVersion": containers.version,
        "kubeletVersion": f"{KUBERNETES}-trainop-{trainop.__version__}",
        **dict.fromkeys(("kubeProxyVersion", "machineID", "systemUUID", "bootID"), ""),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {NETWORK_ANNOTATION: mode}},
        "spec": {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "capacity": {**capacity},
            "allocatable": {**capacity},
            "conditions": [ready],
            "nodeInfo": info,
        },
    }


async def register(client: Client, node: Json) -> None:
    """Creates the Node, or updates the one left by an earlier run. Raises `ApiError` as the client does."""
    name = node["metadata"]["name"]
    try:
        await client.create(NODES, node)
    except AlreadyExistsError:
        before = (await client.patch(NODES, name, None, {"metadata": node["metadata"]})).get("status") or {}
        for field in ("capacity", "allocatable"):  # devices that are gone
            node["status"][field] = dict.fromkeys(before.get(field) or ()) | node["status"][field]
    await client.patch(NODES, name, None, {"status": node["status"]}, subresource="status")


def container_environment(caller: Mapping[str, str], shims: Path, mode: NetworkMode, ready: Path) -> dict[str, str]:
    """The caller's environment without Kubernetes settings; the directory of this interpreter is first on PATH."""
    environment = {name: value for name, value in caller.items() if not name.startswith(_EXCLUDED_VARIABLES)}
    path = [str(Path(sys.executable).parent), *caller.get("PATH", os.defpath).split(os.pathsep)]
    # In mode `namespaces` an installed nslookup works with our DNS server; otherwise the shim must take precedence.
    path.insert(1 if mode == "addresses" else len(path), str(shims))
    environment["PATH"] = os.pathsep.join(dict.fromkeys(path))
    environment.setdefault("PYTHONUNBUFFERED", "1")  # as images do, so that output reaches the log without delay
    if mode == "addresses":
        environment["TRAINOP_READY_ADDRESSES"] = str(ready)
    return environment | _without_proxy(caller, ["127.0.0.1"] if mode == "addresses" else _SERVICES)


def _without_proxy(caller: Mapping[str, str], addresses: Sequence[str]) -> dict[str, str]:
    """The variables with which the caller's proxies, if there are any, are not used for these addresses: they are of
    this cluster."""
    if not any(name.lower() in {"http_proxy", "https_proxy", "all_proxy"} and value for name, value in caller.items()):
        return {}
    given = caller.get("no_proxy") or caller.get("NO_PROXY") or ""
    text = ",".join(dict.fromkeys([*filter(None, given.split(",")), *addresses]))
    return {"no_proxy": text, "NO_PROXY": text}


def process_defaults(directory: Path, caller: Mapping[str, str], shims: Path, mode: NetworkMode) -> Defaults:
    """The defaults of containers that are processes of this machine. `directory` is that of the node."""
    environment = container_environment(caller, shims, mode, directory / READY)
    return Defaults(environment, str(Path.cwd()), common_mounts(directory / "etc"))


def write_shims(directory: Path) -> None:
    """Writes fallback programs that containers often call: `nslookup`, and `python` or `python3` if not on PATH."""
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
    """Mounts that restrict name lookups in pods to `/etc/hosts` and DNS: no other NSS module, no nscd of the host.

    Those would return the host's view of a name instead of the cluster's. Also the directory that sshd of root requires
    and images contain; a machine that runs no sshd itself lacks it.
    """
    mounts: list[Mount] = []
    directory.mkdir(parents=True, exist_ok=True)
    if _NSSWITCH.exists():
        lines = _NSSWITCH.read_text().splitlines()
        copy = directory / "nsswitch.conf"
        kept = [line for line in lines if not line.startswith("hosts:")]
        copy.write_text("\n".join([*kept, "hosts: files dns"]) + "\n")
        mounts.append(Mount(str(_NSSWITCH), str(copy)))
    if _NSCD_DIRECTORY.is_dir():
        empty = directory / "nscd"
        empty.mkdir(exist_ok=True)
        mounts.append(Mount(str(_NSCD_DIRECTORY), str(empty)))
    if _SSHD.exists() and not _SSHD_DIRECTORY.exists() and os.geteuid() == 0:
        separate = directory / "sshd"
        separate.mkdir(mode=0o755, exist_ok=True)
        mounts.append(Mount(str(_SSHD_DIRECTORY), str(separate)))
    return mounts
