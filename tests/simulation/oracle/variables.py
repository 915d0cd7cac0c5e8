"""The variables of each replica, computed from the job alone (frameworks-v1 §6).

Each function answers a mapping of names to values; a variable that refers to a field of the pod has the path of that
field in braces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from tests.simulation.oracle.kinds import Job, Json, Slot

Variables = dict[str, str]


def variables_of(job: Job, slot: Slot, zone: str) -> Variables:
    """What the operator has to add to the containers of that slot's pod. `zone` follows the name of a replica in
    the addresses of kinds that state the namespace."""
    return _RULES[job.kind_name](job, *slot, zone)


def variables_in(container: Json) -> Variables:
    """What a container of a stored pod has."""
    return {each["name"]: _read(each) for each in container.get("env") or ()}


def _read(entry: Json) -> str:
    if "valueFrom" in entry:
        return "{" + str(entry["valueFrom"]["fieldRef"]["fieldPath"]) + "}"
    return str(entry.get("value", ""))


def _port(job: Job, role: str) -> int:
    """Of the kind's container, or the default."""
    containers = job.roles[role]["template"]["spec"]["containers"] if role in job.roles else ()
    for container in containers:
        for port in container.get("ports") or ():
            if container["name"] == job.kind.container and port.get("name") == job.kind.port_name:
                return int(port["containerPort"])
    return job.kind.port


def _names(job: Job, role: str) -> list[str]:
    return [f"{job.name}-{role.lower()}-{index}" for index in range(job.replicas(role))]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _tensorflow(job: Job, role: str, index: int, zone: str) -> Variables:
    if job.total == 1:
        return {}
    cluster = {
        name.lower(): [f"{host}.{zone}:{_port(job, name)}" for host in _names(job, name)]
        for name in sorted(job.roles, key=str.lower)
    }
    task = {"type": role, "index": index}
    return {"TF_CONFIG": _compact({"cluster": cluster, "task": task, "environment": "cloud"})}


def _pytorch(job: Job, role: str, index: int, _zone: str) -> Variables:
    found = {"PYTHONUNBUFFERED": "1"}
    processes = str(job.spec.get("nprocPerNode") or "auto")
    if "Master" in job.roles:
        rank = index if role == "master" else index + 1
        each = int(processes) if processes.isdecimal() else 1
        found |= {
            "MASTER_PORT": str(_port(job, "Master")),
            "PET_MASTER_PORT": str(_port(job, "Master")),
            "MASTER_ADDR": f"{job.name}-master-0",
            "PET_MASTER_ADDR": f"{job.name}-master-0",
            "WORLD_SIZE": str(job.total * each),
            "RANK": str(rank),
            "PET_NODE_RANK": str(rank),
        }
    return found | {"PET_NPROC_PER_NODE": processes, "PET_NNODES": str(job.total)}


def _xgboost(job: Job, role: str, index: int, _zone: str) -> Variables:
    rank = index if role == "master" else index + job.replicas("Master")
    found = {
        "MASTER_PORT": str(_port(job, "Master")),
        "MASTER_ADDR": f"{job.name}-master-0",
        "WORLD_SIZE": str(job.total),
        "RANK": str(rank),
        "PYTHONUNBUFFERED": "1",
    }
    if job.total > 1:
        workers = [f"{job.name}-worker-{number}" for number in range(job.total - 1)]
        found |= {"WORKER_PORT": str(_port(job, "Worker")), "WORKER_ADDRS": ",".join(workers)}
    return found


def _paddle(job: Job, role: str, index: int, _zone: str) -> Variables:
    found = {"PYTHONUNBUFFERED": "1", "PADDLE_JOB_ID": job.name, "PADDLE_NNODES": str(job.total)}
    first = "Master" if "Master" in job.roles else "Worker"
    port = _port(job, first)
    if (role, index) == (first.lower(), 0):
        found |= {"POD_IP_DUMMY": "{status.podIP}", "PADDLE_MASTER": f"$(POD_IP_DUMMY):{port}"}
    else:
        found["PADDLE_MASTER"] = f"{job.name}-{first.lower()}-0:{port}"
    if first == "Master":
        found["PADDLE_SERVER_NUM" if role == "master" else "PADDLE_TRAINER_NUM"] = "1"
    return found


def _jax(job: Job, _role: str, index: int, _zone: str) -> Variables:
    return {
        "PYTHONUNBUFFERED": "1",
        "COORDINATOR_PORT": str(_port(job, "Worker")),
        "COORDINATOR_ADDRESS": f"{job.name}-worker-0",
        "NUM_PROCESSES": str(job.total),
        "PROCESS_ID": str(index),
    }


def _mxnet(job: Job, role: str, index: int, _zone: str) -> Variables:
    ordered = sorted(job.roles, key=str.lower)
    config = {
        "cluster": {
            name.lower(): [{"url": host, "port": _port(job, name)} for host in _names(job, name)] for name in ordered
        },
        "labels": {name.lower(): _tuner_server_key(job, name) for name in ordered},
        "task": {"type": role, "index": index},
    }
    has_scheduler = bool(job.replicas("Scheduler"))
    found = {
        "MX_CONFIG": _compact(config),
        "DMLC_PS_ROOT_PORT": str(_port(job, "Scheduler")) if has_scheduler else "0",
        "DMLC_PS_ROOT_URI": f"{job.name}-scheduler-0" if has_scheduler else "",
        "DMLC_NUM_SERVER": str(job.replicas("Server")),
        "DMLC_NUM_WORKER": str(job.replicas("Worker")),
        "DMLC_ROLE": role,
        "DMLC_USE_KUBERNETES": "1",
    }
    return found | ({"DMLC_WORKER_ID": str(index)} if role == "worker" else {})


def _tuner_server_key(job: Job, role: str) -> str:
    metadata = job.roles[role]["template"].get("metadata") or {}
    return str((metadata.get("annotations") or {}).get("tuner-server-key", ""))


_RULES: Mapping[str, Callable[[Job, str, int, str], Variables]] = {
    "TFJob": _tensorflow,
    "PyTorchJob": _pytorch,
    "XGBoostJob": _xgboost,
    "PaddleJob": _paddle,
    "JAXJob": _jax,
    "MXJob": _mxnet,
}
