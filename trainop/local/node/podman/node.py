"""A node whose containers podman runs: what it needs to start, and what its containers have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainop.local.node.devices import Devices
from trainop.local.node.podman.containers import PodmanContainers, check_network
from trainop.local.node.podman.program import Podman
from trainop.local.node.pods.containers import READY, Containers, Defaults
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.sandbox import ContainerRuntime, NetworkMode

_READY = "/run/trainop/ready-addresses"
_NSLOOKUP = """\
#!/bin/sh
# Where pods share the network of a machine, names are addresses already: prints whether one is that of a ready pod.
for name; do
  while read -r each; do
    if [ "$each" = "$name" ]; then
      printf 'Name:\\t%s\\nAddress: %s\\n' "$name" "$name"
      exit 0
    fi
  done <"$TRAINOP_READY_ADDRESSES"
done
echo "** server can't find $*: NXDOMAIN"
exit 1
"""


@dataclass(frozen=True, slots=True)
class PodmanOptions:
    """Options of containers that podman runs."""

    folder: Path | None = None
    """A folder of this machine that all containers have at the same path, and work in; None: nothing of this machine
    but the volumes of their pods."""
    init_image: str = ""
    """The image in which workers wait for their master; empty: the operator's."""

    def defaults(self, directory: Path, network: NetworkMode) -> Defaults:
        """What each container of the node with this directory has."""
        path = "" if self.folder is None else str(self.folder.resolve())
        mounts = [Mount(path, path)] if path else []
        if network == "namespaces":
            return Defaults({}, path, mounts)
        program, ready = directory / "bin" / "nslookup-of-images", directory / READY
        program.write_text(_NSLOOKUP)
        program.chmod(0o755)
        ready.touch()
        mounts += [
            Mount("/usr/local/bin/nslookup", str(program), read_only=True),
            Mount(_READY, str(ready), read_only=True),
        ]
        return Defaults({"TRAINOP_READY_ADDRESSES": _READY}, path, mounts)


async def start_podman(network: NetworkMode | None, devices: Devices) -> tuple[ContainerRuntime, Containers]:
    """Starts the network of pods and what runs their containers. Raises `SandboxError`."""
    podman = await Podman.find()
    runtime = await ContainerRuntime.start(check_network(network))
    try:
        return runtime, await PodmanContainers.open(runtime, podman, devices)
    except BaseException:
        await runtime.close()
        raise
