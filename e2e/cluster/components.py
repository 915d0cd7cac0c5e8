"""The components of a control plane: which programs run, on which ports, with which command lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.certificates import Authority
from e2e.cluster.daemons import free_ports
from e2e.cluster.places import HERE, ClusterError, binary

EXTRAS = {
    "controller-manager": "kube-controller-manager",
    "scheduler": "kube-scheduler",
    "kwok": "kwok",
    "binder": None,
}
"""Optional components beside etcd and kube-apiserver, and the program that each needs."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Name and address of a node that runs a kubelet; pods reach the API server at the address."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The configuration of a control plane."""

    extras: tuple[str, ...] = ()
    nodes: int = 1
    """Number of simulated nodes if kwok runs."""
    service_cidr: str = "10.96.0.0/16"
    node: NodeIdentity | None = None
    """A real node. The API server also listens on its address, and its credentials are written."""
    flags: tuple[str, ...] = ()
    """Additional flags as `COMPONENT=--FLAG=VALUE`."""
    release: str = ""
    """Of Kubernetes, such as 1.37. If empty, that of the environment, else the default (`releases.find_release`)."""

    def programs(self) -> list[str]:
        """The programs that this configuration needs. Raises `ClusterError` for an unknown extra."""
        if unknown := [extra for extra in self.extras if extra not in EXTRAS]:
            raise ClusterError(f"{', '.join(unknown)}: not one of {', '.join(EXTRAS)}")
        return ["etcd", "kube-apiserver", *(program for e in self.extras if (program := EXTRAS[e]))]


@dataclass(frozen=True, slots=True)
class Plan:
    """The API server's port, and the command line of each program in start order."""

    port: int
    commands: dict[str, list[str]]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


def make_plan(data: Path, options: ClusterOptions) -> Plan:
    """Chooses free ports and writes certificates and kubeconfigs into `data`."""
    etcd_port, port, kwok_port = free_ports(3)
    url = f"https://127.0.0.1:{port}"
    pki = Authority(data / "pki")
    pki.kubeconfig(data / "admin.kubeconfig", url, "admin", ["system:masters"])
    tokens = pki.key_pair("service-accounts")
    commands = {
        "etcd": _etcd(data, etcd_port),
        "kube-apiserver": _apiserver(pki, tokens, etcd_port, port, options),
    }
    if options.node:
        _write_node_credentials(data, pki, f"https://{options.node.address}:{port}", options.node)
    if "controller-manager" in options.extras:
        config = pki.kubeconfig(data / "controller-manager.kubeconfig", url, "system:kube-controller-manager")
        commands["kube-controller-manager"] = _controller_manager(config, pki, tokens[0])
    if "scheduler" in options.extras:
        config = pki.kubeconfig(data / "scheduler.kubeconfig", url, "system:kube-scheduler")
        commands["kube-scheduler"] = _scheduler(config)
    if "kwok" in options.extras:
        config = pki.kubeconfig(data / "kwok.kubeconfig", url, "kwok", ["system:masters"])
        commands["kwok"] = _kwok(config, kwok_port)
    for flag_option in options.flags:
        component, _, flag = flag_option.partition("=")
        if component not in commands:
            raise ClusterError(f"{flag_option}: {component!r} is not one of {', '.join(commands)}")
        commands[component].append(flag)
    return Plan(port, {name: [str(binary(name, options.release)), *flags] for name, flags in commands.items()})


def _write_node_credentials(data: Path, pki: Authority, url: str, node: NodeIdentity) -> None:
    user = f"system:node:{node.name}"
    pki.kubeconfig(data / "kubelet.kubeconfig", url, user, ["system:nodes"])
    pki.kubeconfig(data / "kube-proxy.kubeconfig", url, "system:kube-proxy")
    pki.kubeconfig(data / "coredns.kubeconfig", url, "coredns", ["system:masters"])
    pki.issue("kubelet-server", user, ["system:nodes"], hosts=[node.name, node.address])
    pki.issue("kubelet-client", "kube-apiserver-kubelet", ["system:masters"])


def _etcd(data: Path, port: int) -> list[str]:
    return [
        "--name=default",
        f"--data-dir={data / 'etcd'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls=http://127.0.0.1:{port}",
        f"--advertise-client-urls=http://127.0.0.1:{port}",
        "--listen-peer-urls=http://127.0.0.1:0",
        "--quota-backend-bytes=4294967296",
    ]


def _apiserver(
    pki: Authority, tokens: tuple[Path, Path], etcd_port: int, port: int, options: ClusterOptions
) -> list[str]:
    first_service = options.service_cidr.split("/")[0].rsplit(".", 1)[0] + ".1"
    cluster_names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    hosts = ["localhost", "127.0.0.1", first_service, *cluster_names, *([options.node.address] if options.node else [])]
    cert, key = pki.issue("apiserver", "kube-apiserver", hosts=hosts)
    command = [
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--secure-port={port}",
        *_reachability(pki, options.node),
        f"--service-cluster-ip-range={options.service_cidr}",
        "--allow-privileged=true",
        f"--tls-cert-file={cert}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={pki.cert}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={tokens[1]}",
        f"--service-account-signing-key-file={tokens[0]}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--profiling=false",
        "--v=1",
    ]
    if "controller-manager" not in options.extras:  # service accounts are not created
        command.append("--disable-admission-plugins=ServiceAccount")
    if "binder" in options.extras:
        command.append("--feature-gates=MutatingAdmissionPolicy=true")
        command.append("--runtime-config=admissionregistration.k8s.io/v1beta1=true")
    return command


def _reachability(pki: Authority, node: NodeIdentity | None) -> list[str]:
    """Flags for the address of the API server, and for its requests to a kubelet."""
    if node is None:  # a loopback address is not allowed in EndpointSlices
        return ["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"]
    return [
        "--bind-address=0.0.0.0",
        f"--advertise-address={node.address}",
        "--endpoint-reconciler-type=lease",
        f"--kubelet-client-certificate={pki.folder / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki.folder / 'kubelet-client.key'}",
        f"--kubelet-certificate-authority={pki.cert}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _controller_manager(config: Path, pki: Authority, token_key: Path) -> list[str]:
    return [
        f"--kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--service-account-private-key-file={token_key}",
        f"--root-ca-file={pki.cert}",
        f"--cluster-signing-cert-file={pki.cert}",
        f"--cluster-signing-key-file={pki.key}",
        "--use-service-account-credentials=true",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--v=1",
    ]


def _scheduler(config: Path) -> list[str]:
    return [
        f"--kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=5000",
        "--kube-api-burst=5000",
        "--v=1",
    ]


def _kwok(config: Path, port: int) -> list[str]:
    return [
        f"--kubeconfig={config}",
        f"--config={HERE / 'kwok-stages.yaml'}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--cidr=10.200.0.0/16",  # addresses of simulated pods, not routable
        f"--server-address=127.0.0.1:{port}",
        "--node-ip=127.0.0.1",
        f"--node-port={port}",
        "--node-lease-duration-seconds=40",
    ]
