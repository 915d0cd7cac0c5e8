"""Pod IP allocation, and the rewriting of commands that replaces DNS and mounts where namespaces are unavailable.

In mode `addresses` all pods share the host's network and file system. Each pod still has its own IP address (on Linux
in 127.0.0.0/8, so that two pods can listen on the same port if each binds its own address). Service and pod names do
not resolve in this mode and volumes cannot be mounted. Instead, names are replaced by addresses and mount paths by
source directories in the environment and arguments of each container.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeAlias

from trainop.local.node.sandbox.bridge import NETWORK
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import Command, NetworkMode
from trainop.runtime import Key

AddressOf: TypeAlias = Callable[[str], str | None]
"""Returns the IP address for a DNS name, or None if the word is not a name in the cluster."""

# A complete DNS name that is not a path component; the host of a URL (//host) matches.
_NAME = re.compile(r"(?<![\w.-])(?<!(?<!/)/)(?:[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)(?:\.[a-z0-9][-a-z0-9]*)*(?![\w-])")


class AddressAllocator:
    """Pod IP allocator (IPAM).

    In mode `namespaces` each pod gets a new address. In mode `addresses` an address belongs to a pod name: it can be
    reserved before the pod exists and stays the same when the pod is recreated.
    """

    def __init__(self, mode: NetworkMode, seed: int, platform: str = sys.platform) -> None:
        """`seed` selects the loopback subnet, so that several nodes on one machine rarely collide."""
        self._mode = mode
        self._single_address = mode == "addresses" and platform != "linux"  # elsewhere only 127.0.0.1 is configured
        self._base = (
            ipaddress.ip_network(NETWORK)
            if mode == "namespaces"
            else ipaddress.ip_network(f"127.{16 + seed % 224}.0.0/16")
        )
        self._next = 1
        self._reserved: dict[Key, str] = {}
        self._used: set[str] = set()

    def allocate(self, pod: Key) -> str:
        """The address for a pod that is about to start. Raises `RuntimeError` if the subnet is exhausted."""
        if self._mode == "namespaces":
            return self._next_free()
        return self.reserve(pod)

    def reserve(self, pod: Key) -> str:
        """Mode `addresses`: the address that a pod of this name has or will get."""
        if pod not in self._reserved:
            self._reserved[pod] = self._next_free()
        return self._reserved[pod]

    def release(self, address: str) -> None:
        """Mode `namespaces`: frees the address of a deleted pod. Free addresses are reused in round-robin order."""
        if self._mode == "namespaces":
            self._used.discard(address)

    def _next_free(self) -> str:
        if self._single_address:
            return "127.0.0.1"
        size = self._base.num_addresses - 2
        for _ in range(size):
            self._next = self._next % size + 1
            address = str(self._base[self._next])
            if self._next > 1 and address not in self._used:  # the first address is the hub's
                self._used.add(address)
                return address
        raise RuntimeError(f"no address is left in {self._base}")


def rewrite_command(
    command: Command, address_of: AddressOf, unchanged: Collection[str], *, paths: bool = True
) -> Command:
    """Replaces names by addresses and mount paths by their source directories in arguments, environment, directory.
    Without `paths`, only names.

    Variables listed in `unchanged` hold the pod's identity (such as its name or hostname) and are not rewritten.
    """

    def rewrite(text: str) -> str:
        named = replace_names(text, address_of)
        return replace_paths(named, command.mounts) if paths else named

    variables = command.environment.items()
    environment = {name: value if name in unchanged else rewrite(value) for name, value in variables}
    return replace(
        command,
        argv=[rewrite(word) for word in command.argv],
        environment=environment,
        directory=replace_paths(command.directory, command.mounts) if paths else command.directory,
    )


def replace_names(text: str, address_of: AddressOf) -> str:
    """Replaces each complete word for which `address_of` returns an address."""
    return _NAME.sub(lambda found: address_of(found[0]) or found[0], text)


def replace_paths(text: str, mounts: Sequence[Mount]) -> str:
    """Replaces each path at or below a mount point by the path in its source; the deepest mount point wins."""
    targets = {mount.target.rstrip("/"): mount.source for mount in mounts if mount.source and mount.target != "/"}
    if not targets:
        return text
    longest_first = sorted(targets, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first))})(?![\w.-])")
    return pattern.sub(lambda found: targets[found[1]], text)
