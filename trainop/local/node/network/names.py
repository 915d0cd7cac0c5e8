"""Which address a name of the cluster stands for: Services and pods, as cluster DNS answers. Pure.

Source: Kubernetes DNS-Based Service Discovery (github.com/kubernetes/dns `docs/specification.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainop.runtime.objects.metadata import Json, Unstructured

DOMAIN = "cluster.local"


@dataclass(frozen=True, slots=True)
class NameSpace:
    """What names are made of: a look into the caches, by namespace."""

    service: Callable[[str, str], Unstructured | None]
    """By namespace and name."""
    pod: Callable[[str, str], Unstructured | None]
    """By namespace and name."""
    pods: Callable[[str], Iterable[Unstructured]]
    """All of a namespace."""


def resolve(name: str, names: NameSpace) -> list[str] | None:
    """The addresses of a fully qualified name; None if there is no such name, empty if it has none of this family.

    `<service>.<ns>.svc.cluster.local`, `<hostname>.<service>.…` and `<a-b-c-d>.<ns>.pod.…` as Kubernetes; and, for
    pods without a Service of that name, `<pod>.<ns>.svc.cluster.local` once the pod is ready.
    """
    labels = name.rstrip(".").lower().split(".")
    if labels == ["localhost"]:
        return ["127.0.0.1"]
    if len(labels) < 5 or labels[-2:] != DOMAIN.split("."):
        return None
    *below, namespace, kind = labels[:-2]
    if kind == "pod" and len(below) == 1:
        return [below[0].replace("-", ".")]
    if kind != "svc" or not 1 <= len(below) <= 2:
        return None
    service = names.service(namespace, below[-1])
    if service is None:
        return _pod_by_name(below, namespace, names)
    found = [
        (pod, address)
        for pod in names.pods(namespace)
        if selects(service.raw, pod.raw) and (address := _published(service.raw, pod.raw))
    ]
    if len(below) == 2:
        found = [(pod, address) for pod, address in found if _answers_to(pod.raw, *below)]
    return [address for _, address in found] or None


def belongs_to_cluster(name: str, names: NameSpace) -> bool:
    """Whether nobody outside is to be asked for it, even if it does not resolve: such as `<pod>.<namespace>`."""
    labels = name.rstrip(".").lower().split(".")
    inside = labels[-2:] == DOMAIN.split(".") or labels[-1] in {"svc", "localhost"}
    return inside or len(labels) == 1 or any(True for _ in names.pods(labels[-1]))


def selects(service: Json, pod: Json) -> bool:
    selector = (service.get("spec") or {}).get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _pod_by_name(below: list[str], namespace: str, names: NameSpace) -> list[str] | None:
    pod = names.pod(namespace, below[0]) if len(below) == 1 else None
    if pod is None or not is_ready(pod.raw):
        return None
    return [pod.raw["status"]["podIP"]]


def _answers_to(pod: Json, hostname: str, subdomain: str) -> bool:
    spec = pod["spec"]
    return bool(spec.get("hostname") == hostname and spec.get("subdomain") == subdomain)


def _published(service: Json, pod: Json) -> str:
    """The pod's address if the service publishes it, else nothing."""
    status = pod.get("status") or {}
    if status.get("phase") in {"Succeeded", "Failed"}:
        return ""
    open_to_all = (service.get("spec") or {}).get("publishNotReadyAddresses")
    ready = is_ready(pod) and not pod["metadata"].get("deletionTimestamp")
    return str(status.get("podIP") or "") if ready or open_to_all else ""


def hosts_file(pod: Json, address: str, hostname: str) -> str:
    """`/etc/hosts` of a pod: its own name and its `hostAliases`, as kubelet writes it; all others come from DNS."""
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
    full = f"{hostname}.{spec['subdomain']}.{namespace}.svc.{DOMAIN} " if spec.get("subdomain") else ""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"{address}\t{full}{hostname}"]
    lines += [f"{alias['ip']}\t{' '.join(alias.get('hostnames') or ())}" for alias in spec.get("hostAliases") or ()]
    return "\n".join(lines) + "\n"


def resolver_file(namespace: str, server: str) -> str:
    """`/etc/resolv.conf` of a pod with `dnsPolicy: ClusterFirst`."""
    search = f"{namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}"
    return f"nameserver {server}\nsearch {search}\noptions ndots:5 timeout:2 attempts:3\n"
