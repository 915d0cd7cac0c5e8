"""Cluster DNS records of Services and pods, `/etc/hosts` and `/etc/resolv.conf`. Pure functions of cached objects.

Source: Kubernetes DNS-Based Service Discovery (github.com/kubernetes/dns `docs/specification.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainop.runtime import Json, Unstructured

DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class ObjectLookup:
    """Read access to the Service and pod caches."""

    service: Callable[[str, str], Unstructured | None]
    """A Service by namespace and name."""
    pod: Callable[[str, str], Unstructured | None]
    """A pod by namespace and name."""
    pods: Callable[[str], Iterable[Unstructured]]
    """All pods in a namespace."""


def resolve(name: str, objects: ObjectLookup) -> list[str] | None:
    """The IPv4 addresses of a fully qualified name; None if the name does not exist or has no address.

    Resolves the names that Kubernetes defines: `<service>.<ns>.svc.cluster.local`, `<hostname>.<service>.…` and
    `<a-b-c-d>.<ns>.pod.…`. As extensions, if there is no Service of that name, `<pod>.<ns>.svc.cluster.local`
    resolves once the pod is ready, and a name that only pods have that have succeeded still resolves: a worker that
    starts late must not wait for a master that has ended.
    """
    labels = name.rstrip(".").lower().split(".")
    if labels == ["localhost"]:
        return ["127.0.0.1"]
    if len(labels) < 5 or labels[-2:] != DOMAIN.split("."):
        return None
    *labels_below, namespace, kind = labels[:-2]
    if kind == "pod" and len(labels_below) == 1:
        return [labels_below[0].replace("-", ".")]
    if kind != "svc" or not 1 <= len(labels_below) <= 2:
        return None
    service = objects.service(namespace, labels_below[-1])
    if service is None:
        return _pod_by_name(labels_below, namespace, objects)
    pods = [pod.raw for pod in objects.pods(namespace) if selects(service.raw, pod.raw)]
    if len(labels_below) == 2:
        pods = [pod for pod in pods if _has_hostname(pod, *labels_below)]
    published = [address for pod in pods if (address := _published_address(service.raw, pod))]
    return published or [pod["status"]["podIP"] for pod in pods if has_succeeded(pod)] or None


def belongs_to_cluster(name: str, objects: ObjectLookup) -> bool:
    """Whether the name is in the cluster's zones or search domains and must not be forwarded to an outside resolver.

    True even if it does not resolve, for example `<pod>.<namespace>` for a namespace that has pods.
    """
    labels = name.rstrip(".").lower().split(".")
    in_cluster_domain = labels[-2:] == DOMAIN.split(".") or labels[-1] in {"svc", "localhost"}
    return in_cluster_domain or len(labels) == 1 or any(True for _ in objects.pods(labels[-1]))


def selects(service: Json, pod: Json) -> bool:
    """Whether the Service's selector matches the pod; an empty selector matches no pod."""
    selector = (service.get("spec") or {}).get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def is_ready(pod: Json) -> bool:
    """Whether the pod has the condition Ready with status True."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def has_succeeded(pod: Json) -> bool:
    """Whether the pod has ended well, and had an address."""
    status = pod.get("status") or {}
    return bool(status.get("phase") == "Succeeded" and status.get("podIP"))


def _pod_by_name(labels_below: list[str], namespace: str, objects: ObjectLookup) -> list[str] | None:
    pod = objects.pod(namespace, labels_below[0]) if len(labels_below) == 1 else None
    if pod is None or not (is_ready(pod.raw) or has_succeeded(pod.raw)):
        return None
    return [pod.raw["status"]["podIP"]]


def _has_hostname(pod: Json, hostname: str, subdomain: str) -> bool:
    spec = pod["spec"]
    return bool(spec.get("hostname") == hostname and spec.get("subdomain") == subdomain)


def _published_address(service: Json, pod: Json) -> str:
    """The pod's address if the Service publishes it, else an empty string."""
    status = pod.get("status") or {}
    if status.get("phase") in {"Succeeded", "Failed"}:
        return ""
    publish_not_ready = (service.get("spec") or {}).get("publishNotReadyAddresses")
    ready = is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    return str(status.get("podIP") or "") if ready or publish_not_ready else ""


def hostname_of(pod: Json) -> str:
    """The host name of a pod's containers."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def hosts_file(pod: Json, address: str, hostname: str) -> str:
    """`/etc/hosts` of a pod, as kubelet writes it: localhost, the pod's own name and its `hostAliases`."""
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    full = f"{hostname}.{spec['subdomain']}.{namespace}.svc.{DOMAIN} " if spec.get("subdomain") else ""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"{address}\t{full}{hostname}"]
    lines += [f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}" for alias in spec.get("hostAliases") or ()]
    return "\n".join(lines) + "\n"


def resolver_file(pod: Json, server: str) -> str:
    """`/etc/resolv.conf` of a pod with `dnsPolicy: ClusterFirst`, and the searches and options of its `dnsConfig`.

    Source: kubelet `pkg/kubelet/network/dns/dns.go`. Other name servers have no effect: they are not reachable.
    """
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    own = spec.get("dnsConfig") or {}
    searches = [f"{namespace}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN, *(own.get("searches") or ())]
    options = {"ndots": "5", "timeout": "2", "attempts": "3"}
    options |= {option["name"]: option.get("value") or "" for option in own.get("options") or ()}
    words = [f"{name}:{value}" if value else name for name, value in options.items()]
    return f"nameserver {server}\nsearch {' '.join(dict.fromkeys(searches))}\noptions {' '.join(words)}\n"
