"""The objects of an MPI job with two workers, as the operator makes them for each transport."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from trainop.runtime.objects.metadata import Json

JOB, WORKERS = "pi", 2
NAMESPACE = "default"
LABELS = {"training.kubeflow.org/job-name": JOB}
LAUNCHER = f"{JOB}-launcher"
NAMES = [f"{JOB}-worker-{index}" for index in range(WORKERS)]
PROGRAM = ("/usr/bin/python3", str(Path(__file__).parents[2] / "examples" / "mpi" / "pi.py"))
MPIRUN = {
    "openmpi": ["mpirun.openmpi", "-np", str(WORKERS)],
    "mpich": ["mpirun.mpich", "-np", str(WORKERS)],
}
SSH_PORT = 22 if os.geteuid() == 0 else 2222
"""An ordinary user cannot listen on port 22."""
KEYS = "/root/.ssh" if os.geteuid() == 0 else "/home/mpiuser/.ssh"

_KUBEXEC = """\
#!/bin/sh
set -x
POD_NAME=$1
shift
/opt/kube/kubectl exec ${POD_NAME} -- /bin/sh -c "$*"
"""
_SSH_CONFIG = f"""\
Port {SSH_PORT}
IdentityFile {KEYS}/id_rsa
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""
_SSHD_CONFIG = f"""\
Port {SSH_PORT}
HostKey {KEYS}/id_rsa
AuthorizedKeysFile {KEYS}/authorized_keys
PidFile none
StrictModes no
"""


def _object(kind: str, name: str, **content: Json) -> Json:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": LABELS}, **content}


def _pod(name: str, container: Json, volumes: list[Json], **spec: object) -> Json:
    container = {"name": "mpi", "image": "none", **container}
    own = {"hostname": name, "subdomain": JOB, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return _object("Pod", name, spec={**own, "containers": [container], "volumes": volumes, **spec})


def _variables(values: dict[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _program(implementation: str) -> list[str]:
    as_root = ["--allow-run-as-root"] if implementation == "openmpi" and os.geteuid() == 0 else []
    return [*MPIRUN[implementation], *as_root, *PROGRAM, implementation]


def _config(files: dict[str, str]) -> tuple[Json, Json]:
    """The ConfigMap of a job and its volume."""
    items = [{"key": name, "path": name, "mode": 0o555 if name.endswith(".sh") else 0o444} for name in files]
    volume = {"name": "mpi-job-config", "configMap": {"name": f"{JOB}-config", "items": items}}
    return _object("ConfigMap", f"{JOB}-config", data=files), volume


def over_ssh(implementation: str) -> list[Json]:
    """As transport ssh of MPIJob: Service, ConfigMap, Secret, workers that run sshd, launcher.

    The images of MPI jobs contain a configuration of ssh; here a ConfigMap does.
    """
    line = "{}.{}.{}.svc slots=1\n" if implementation == "openmpi" else "{}.{}.{}.svc:1\n"
    config, config_volume = _config({"hostfile": "".join(line.format(name, JOB, NAMESPACE) for name in NAMES)})
    settings = _object("ConfigMap", "ssh", data={"trainop.conf": _SSH_CONFIG, "sshd_config": _SSHD_CONFIG})
    keys, keys_volume = _keys()
    volumes = [keys_volume, {"name": "ssh", "configMap": {"name": "ssh"}}]
    mounts = [{"name": "ssh-auth", "mountPath": KEYS}]
    client = [{"name": "ssh", "mountPath": "/etc/ssh/ssh_config.d/trainop.conf", "subPath": "trainop.conf"}]
    server = [{"name": "ssh", "mountPath": "/etc/mpi-sshd"}]
    sshd = {"command": ["/usr/sbin/sshd", "-De", "-f", "/etc/mpi-sshd/sshd_config"], "volumeMounts": [*mounts, *server]}
    port = {"readinessProbe": {"tcpSocket": {"port": SSH_PORT}, "periodSeconds": 1}}
    environment = {
        "openmpi": {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": "1",
        },
        "mpich": {
            "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
            "HYDRA_LAUNCH_EXTRA_ARGS": "-o ConnectionAttempts=10",
        },
    }[implementation]
    launcher = {
        "command": _program(implementation),
        "env": _variables(environment),
        "volumeMounts": [*mounts, *client, {"name": "mpi-job-config", "mountPath": "/etc/mpi"}],
    }
    return [
        _object("Service", JOB, spec={"clusterIP": "None", "selector": LABELS}),
        config,
        settings,
        keys,
        *(_pod(name, {**sshd, **port}, volumes) for name in NAMES),
        _pod(LAUNCHER, launcher, [*volumes, config_volume]),
    ]


def _keys() -> tuple[Json, Json]:
    """The Secret with the key of a job, and its volume."""
    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    named = {"ssh-privatekey": private, "ssh-publickey": public}
    data = {name: base64.b64encode(content).decode() for name, content in named.items()}
    files = {"id_rsa": "ssh-privatekey", "id_rsa.pub": "ssh-publickey", "authorized_keys": "ssh-publickey"}
    source: Json = {"secretName": f"{JOB}-ssh", "items": [{"key": name, "path": path} for path, name in files.items()]}
    if KEYS == "/root/.ssh":
        source["defaultMode"] = 0o600
    secret = {**_object("Secret", f"{JOB}-ssh", data=data), "type": "kubernetes.io/ssh-auth"}
    return secret, {"name": "ssh-auth", "secret": source}


def by_exec(implementation: str) -> list[Json]:
    """As transport exec of MPIJob: service account, ConfigMap, idle workers, a launcher that gets kubectl."""
    config, config_volume = _config(
        {"hostfile": "".join(f"{name} slots=1\n" for name in NAMES), "kubexec.sh": _KUBEXEC}
    )
    kubectl = [{"name": "mpi-job-kubectl", "mountPath": "/opt/kube"}]
    delivery = {
        "name": "kubectl-delivery",
        "image": "kubeflow/kubectl-delivery:latest",
        "env": _variables({"TARGET_DIR": "/opt/kube", "NAMESPACE": NAMESPACE}),
        "volumeMounts": kubectl,
    }
    environment = {
        "openmpi": {
            "OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh",
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        },
        "mpich": {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": "/etc/mpi/kubexec.sh"},
    }[implementation]
    program = _program(implementation)
    if implementation == "mpich":  # the form of the hostfile is Open MPI's
        program[1:1] = ["-hosts", ",".join(NAMES)]
    mounts = [{"name": "mpi-job-config", "mountPath": "/etc/mpi"}]
    launcher = {
        "command": program,
        "env": _variables(environment),
        "volumeMounts": [*kubectl, *mounts],
    }
    volumes = [{"name": "mpi-job-kubectl", "emptyDir": {}}, config_volume]
    # orted of Open MPI wants the remote shell to exist on the workers too
    worker = {"command": ["sleep"], "args": ["365d"], "volumeMounts": mounts}
    return [
        _object("ServiceAccount", LAUNCHER),
        config,
        *(_pod(name, worker, [config_volume]) for name in NAMES),
        _pod(LAUNCHER, launcher, volumes, serviceAccountName=LAUNCHER, initContainers=[delivery]),
    ]


TRANSPORTS = {"ssh": over_ssh, "exec": by_exec}
