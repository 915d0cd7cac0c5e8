"""Configuration files of the node's programs."""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.components import NodeIdentity
from e2e.cluster.places import binary

IDENTITY = NodeIdentity("node-0", "10.245.0.1")
PODS, SERVICES = "10.244.0.0/16", "10.96.0.0/16"
SOCKET = "/run/containerd/containerd.sock"
PAUSE = "localhost/trainop/pause:test"


def network() -> str:
    """The CNI configuration: all pods share a bridge."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "pods0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]})


def containerd(data: Path) -> str:
    """The configuration of containerd, whose CNI configuration is in DATA/cni."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    programs = binary("runc").parent
    disabled = ", ".join(f'"io.containerd.snapshotter.v1.{name}"' for name in ("aufs", "btrfs", "devmapper", "zfs"))
    return f"""version = 2
root = "{data / "containerd"}"
state = "/run/containerd"
disabled_plugins = [{disabled}, "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{SOCKET}"
[{cri}]
sandbox_image = "{PAUSE}"
# a lower score needs CAP_SYS_RESOURCE, which containers and some virtual machines do not have
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[{cri}.cni]
bin_dir = "{programs}"
conf_dir = "{data / "cni"}"
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
BinaryName = "{programs / "runc"}"
SystemdCgroup = false
"""


def coredns(kubeconfig: Path) -> str:
    """Answers names of the cluster from the API server, without a cache, and NXDOMAIN for all others."""
    address = IDENTITY.address
    return f""".:53 {{
  bind {address}
  errors
  ready {address}:8181
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig} test
    ttl 1
  }}
  template ANY ANY . {{
    rcode NXDOMAIN
  }}
}}
"""


def kube_proxy(kubeconfig: Path) -> str:
    unchanged = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": IDENTITY.name,
            "clusterCIDR": PODS,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "conntrack": unchanged,  # these settings belong to the machine
            "nftables": {"minSyncPeriod": "0.1s", "syncPeriod": "30s"},
        }
    )


def kubelet(data: Path, pki: Path, cgroup: str) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "clusterDNS": [IDENTITY.address],
            "clusterDomain": "cluster.local",
            "resolvConf": str(data / "resolv.conf"),
            "authentication": {"x509": {"clientCAFile": str(pki / "ca.crt")}, "anonymous": {"enabled": False}},
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet-server.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet-server.key"),
            # the disk of the machine may be almost full
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100,
            "volumeStatsAggPeriod": "5s",  # how soon a volume beyond its sizeLimit is noticed
            "serializeImagePulls": False,
            "maxPods": 250,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
        },
        indent=1,
    )
