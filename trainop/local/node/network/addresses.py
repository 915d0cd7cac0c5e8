"""Addresses of pods, and how to do without a network of one's own: names and mount points written out in words.

Where the kernel gives no namespaces, all pods share the host's network and files. Each still has an address (on Linux
one of 127.0.0.0/8, so that two may listen on one port if they bind their own address). Names of Services and pods do
not resolve there and volumes cannot be mounted: both are replaced in a container's environment and arguments.
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
from trainop.runtime.objects.metadata import Key

AddressOf: TypeAlias = Callable[[str], str | None]
"""The address that a word stands for, if it is a name."""

# A whole word that is no part of a path; a host of a URL (//host) is one.
_NAME = re.compile(r"(?<![\w.-])(?<!(?<!/)/)(?:[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)(?:\.[a-z0-9][-a-z0-9]*)*(?![\w-])")


class AddressBook:
    """Gives addresses to pods. With namespaces each pod gets a new one; on loopback the same name keeps its own,
    which may be asked for before there is such a pod."""

    def __init__(self, mode: NetworkMode, seed: int, platform: str = sys.platform) -> None:
        """`seed` keeps loopback addresses of several nodes on one machine apart."""
        self._mode = mode
        self._shared = mode == "addresses" and platform != "linux"  # elsewhere only 127.0.0.1 is configured
        self._base = (
            ipaddress.ip_network(NETWORK)
            if mode == "namespaces"
            else ipaddress.ip_network(f"127.{16 + seed % 224}.0.0/16")
        )
        self._next = 1
        self._held: dict[Key, str] = {}
        self._used: set[str] = set()

    def take(self, pod: Key) -> str:
        """The address for a pod that starts."""
        if self._mode == "namespaces":
            return self._fresh()
        return self.reserve(pod)

    def reserve(self, pod: Key) -> str:
        """On loopback: the address that a pod of this name has or will have."""
        if pod not in self._held:
            self._held[pod] = self._fresh()
        return self._held[pod]

    def release(self, address: str) -> None:
        """With namespaces: the pod is gone; its address is not used again before all others were."""
        if self._mode == "namespaces":
            self._used.discard(address)

    def _fresh(self) -> str:
        if self._shared:
            return "127.0.0.1"
        most = self._base.num_addresses - 2
        for _ in range(most):
            self._next = self._next % most + 1
            address = str(self._base[self._next])
            if self._next > 1 and address not in self._used:  # the first is the hub's
                self._used.add(address)
                return address
        raise RuntimeError(f"no address is left in {self._base}")


def write_out(command: Command, address_of: AddressOf, kept: Collection[str]) -> Command:
    """The command with names replaced by addresses and mount points by the directories behind them.

    The variables `kept` stay as they are: they say who the pod is, not where.
    """

    def rewrite(text: str) -> str:
        return replace_paths(replace_names(text, address_of), command.mounts)

    variables = command.environment.items()
    environment = {name: value if name in kept else rewrite(value) for name, value in variables}
    return replace(
        command,
        argv=[rewrite(word) for word in command.argv],
        environment=environment,
        directory=replace_paths(command.directory, command.mounts),
    )


def replace_names(text: str, address_of: AddressOf) -> str:
    """Each whole word that is a name becomes its address."""
    return _NAME.sub(lambda found: address_of(found[0]) or found[0], text)


def replace_paths(text: str, mounts: Sequence[Mount]) -> str:
    """Each path at or below a mount point becomes the path behind it; the deepest mount point counts."""
    targets = {mount.target.rstrip("/"): mount.source for mount in mounts if mount.source and mount.target != "/"}
    if not targets:
        return text
    longest_first = sorted(targets, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first))})(?![\w.-])")
    return pattern.sub(lambda found: targets[found[1]], text)
