"""Reads an OCI archive and runs its programs without a container runtime."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.image.places import USER

# Mounts what a container runtime adds, makes the root file system read-only, and drops all privileges.
CONTAINER = """
set -e
root=$1
mount --bind "$root" "$root"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs none "$root/run"
mkdir -p "$root/run/secrets/kubernetes.io/serviceaccount"
[ -z "$2" ] || cp "$2"/* "$root/run/secrets/kubernetes.io/serviceaccount/"
[ -e "$root/etc/hosts" ] || touch "$root/etc/hosts"
mount --bind /etc/hosts "$root/etc/hosts"
mount -o remount,bind,ro "$root"
shift 2
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Image:
    """An unpacked image: its root file system and its configuration."""

    root: Path
    config: dict[str, Any]
    diff_ids: tuple[str, ...]

    def inside(self, variables: Mapping[str, str] | None = None, service_account: Path | None = None) -> list[str]:
        """The prefix of a command that runs in the image: as its user, on a read-only root file system, without
        capabilities, and with no variables but the image's and the given ones. Needs root."""
        tools = {name: shutil.which(name) or name for name in ("env", "setpriv", "chroot")}
        pairs = [*self.config["config"]["Env"], *(f"{name}={value}" for name, value in (variables or {}).items())]
        bounding = "--bounding-set=-all,+sys_chroot,+setuid,+setgid"  # chroot needs these; changing the user drops them
        mounted = ["unshare", "--mount", "sh", "-c", CONTAINER, "sh", str(self.root), str(service_account or "")]
        limited = [tools["setpriv"], "--no-new-privs", "--clear-groups", bounding]
        return [
            *(*mounted, tools["env"], "--ignore-environment", *pairs),
            *(*limited, tools["chroot"], f"--userspec={USER}:{USER}", str(self.root)),
        ]


def unpack(archive: Path, root: Path) -> Image:
    """Unpacks the layers of an OCI archive and checks all digests."""
    with tarfile.open(archive) as files:

        def blob(descriptor: Mapping[str, Any]) -> bytes:
            digest = str(descriptor["digest"])
            file = files.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert file
            data = file.read()
            assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
            assert len(data) == descriptor["size"]
            return data

        index_file = files.extractfile("index.json")
        assert index_file
        (described,) = json.load(index_file)["manifests"]
        manifest = json.loads(blob(described))
        layers = [blob(layer) for layer in manifest["layers"]]
        config = json.loads(blob(manifest["config"]))
    for data in layers:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as layer:
            layer.extractall(root, filter="fully_trusted")
    return Image(root, config, tuple(config["rootfs"]["diff_ids"]))
