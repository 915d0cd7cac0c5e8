"""The pod network in mode `namespaces`: one network namespace per pod, connected by veth pairs to a bridge.

The bridge is in the supervisor's network namespace, called the hub. The hub's address is the pods' gateway and DNS
server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainop.local.node.sandbox import linux

HUB_ADDRESS = "10.244.0.1"
HUB_HARDWARE_ADDRESS = "0a:58:0a:f4:00:01"
"""Fixed MAC address. Otherwise a bridge takes the lowest MAC address of its ports, which changes when pods are added or
removed; pods with the old address in their ARP cache then reach neither DNS nor the gateway for up to a minute."""
PREFIX_LENGTH = 16
NETWORK = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
"""The network of the addresses that stand for servers of this machine."""

_MAIN_TABLE = 254
_KINDS = (("net", linux.CLONE_NEWNET), ("uts", linux.CLONE_NEWUTS), ("ipc", linux.CLONE_NEWIPC))


@dataclass(frozen=True, slots=True)
class PodNamespaces:
    """The namespaces that a pod's containers share (network, UTS, IPC): open descriptors that keep them alive."""

    fds: tuple[tuple[int, int], ...]

    @classmethod
    def current(cls) -> PodNamespaces:
        """The namespaces of the calling process."""
        return cls(tuple((os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in _KINDS))

    @property
    def network(self) -> int:
        return self.fds[0][0]

    def enter(self) -> None:
        """Moves the calling process into these namespaces. Raises `OSError`."""
        for fd, kind in self.fds:
            linux.setns(fd, kind)

    def close(self) -> None:
        for fd, _ in self.fds:
            os.close(fd)


class Hub:
    """The bridge and the pods' network interfaces. Runs in the supervisor.

    The supervisor is single-threaded, so it can switch to another namespace and back safely.
    """

    def __init__(self, *, isolated: bool = False) -> None:
        """Creates the bridge in the current network namespace, which must be new. With `isolated`, pods have a route to
        each other and to the addresses of Services only. Raises `OSError`."""
        from pyroute2 import IPRoute  # noqa: PLC0415  # the import takes 250 ms and mode `addresses` does not need it

        self._netlink: Any = IPRoute
        self._hub_namespaces = PodNamespaces.current()
        self._count = 0
        self._outside = SERVICES if isolated else "0.0.0.0/0"
        with _netlink_errors("a bridge for pods"):
            self._links = self._netlink()
            self._links.link("set", index=1, state="up")
            self._links.link("add", ifname="pods", kind="bridge", address=HUB_HARDWARE_ADDRESS)
            self._bridge: int = self._links.link_lookup(ifname="pods")[0]
            self._links.addr("add", index=self._bridge, address=HUB_ADDRESS, prefixlen=PREFIX_LENGTH)
            self._links.link("set", index=self._bridge, state="up")
            # Every address outside the pod network is local to the hub: see `network/host_network.py`.
            self._links.route("add", dst="0.0.0.0/0", type="local", scope="host", oif=1, table=_MAIN_TABLE)

    def add_pod(self, hostname: str, address: str) -> PodNamespaces:
        """Creates a pod's namespaces with `eth0` at `address`. Raises `OSError`."""
        linux.unshare(sum(kind for _, kind in _KINDS))
        try:
            pod = PodNamespaces.current()
            linux.set_hostname(hostname)
        finally:
            self._hub_namespaces.enter()
        try:
            with _netlink_errors(f"the network of {hostname}"):
                self._connect(pod)
                self._configure(pod, address)
        except OSError:
            pod.close()
            raise
        return pod

    def _connect(self, pod: PodNamespaces) -> None:
        """Creates a veth pair: one end is a port of the bridge, the other is `eth0` in the pod."""
        self._count += 1
        port = f"pod{self._count}"
        self._links.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_fd": pod.network})
        index = self._links.link_lookup(ifname=port)[0]
        self._links.link("set", index=index, master=self._bridge, state="up")

    def _configure(self, pod: PodNamespaces, address: str) -> None:
        """Sets address and default route inside the pod's network namespace."""
        with self.network_of(pod), self._netlink() as links:
            links.link("set", index=1, state="up")
            index = links.link_lookup(ifname="eth0")[0]
            links.addr("add", index=index, address=address, prefixlen=PREFIX_LENGTH)
            links.link("set", index=index, state="up")
            links.route("add", dst=self._outside, gateway=HUB_ADDRESS, oif=index)

    @contextmanager
    def network_of(self, pod: PodNamespaces) -> Iterator[None]:
        """Inside the block, the calling process is in the pod's network namespace. Raises `OSError`."""
        linux.setns(pod.network, linux.CLONE_NEWNET)
        try:
            yield
        finally:
            linux.setns(self._hub_namespaces.network, linux.CLONE_NEWNET)


@contextmanager
def _netlink_errors(subject: str) -> Iterator[None]:
    """Converts netlink errors to `OSError`s whose message begins with `subject`."""
    from pyroute2.netlink.exceptions import NetlinkError  # noqa: PLC0415  # as above

    try:
        yield
    except NetlinkError as error:
        raise OSError(error.code, f"{subject}: {os.strerror(error.code)}") from error
