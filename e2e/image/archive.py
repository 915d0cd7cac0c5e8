"""Layers and the OCI archive, as `ctr images import`, `podman load` and `skopeo` read it.

Entries are sorted and have root as owner, one time and one of two modes, so that equal contents give equal digests.
The digest of a compressed layer also depends on the zlib that compresses it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Json = dict[str, Any]
MEDIA = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Layer:
    """A compressed layer. `diff_id` is the digest of the uncompressed archive, `size` its length in bytes."""

    name: str
    data: bytes
    diff_id: str
    size: int


def make_layer(name: str, tree: Path, epoch: int) -> Layer:
    """The files of a directory as a layer; `epoch` is the modification time of all of them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            entry = archive.gettarinfo(path, path.relative_to(tree).as_posix())
            entry.type = tarfile.REGTYPE if entry.islnk() else entry.type
            entry.size = path.stat().st_size if entry.isreg() else 0
            entry.mode = _mode(entry)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = epoch
            archive.addfile(entry, io.BytesIO(path.read_bytes()) if entry.isreg() else None)
    plain = buffer.getvalue()
    return Layer(name, gzip.compress(plain, mtime=0), _digest(plain), len(plain))


def _mode(entry: tarfile.TarInfo) -> int:
    if entry.issym():
        return 0o777
    if entry.mode & 0o1000:
        return 0o1777
    return 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What a container of the image runs, and as whom."""

    reference: str
    architecture: str
    user: int
    entrypoint: str
    environment: tuple[str, ...]
    labels: dict[str, str]

    def to_json(self, layers: Sequence[Layer], epoch: int) -> Json:
        return {
            "architecture": self.architecture,
            "os": "linux",
            "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "config": {
                "User": f"{self.user}:{self.user}",
                "Entrypoint": [self.entrypoint],
                "Env": list(self.environment),
                "WorkingDir": "/",
                "Labels": self.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created_by": f"e2e.image: {layer.name}"} for layer in layers],
        }


def write_archive(path: Path, config: ImageConfig, layers: Sequence[Layer], epoch: int) -> str:
    """Writes the archive and returns the digest of the manifest."""
    blobs: dict[str, bytes] = {}

    def add(data: bytes, media_type: str) -> Json:
        digest = _digest(data)
        blobs[f"blobs/{digest.replace(':', '/')}"] = data
        return {"mediaType": f"{MEDIA}.{media_type}", "digest": digest, "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": add(_encode(config.to_json(layers, epoch)), "config.v1+json"),
        "layers": [add(layer.data, "layer.v1.tar+gzip") for layer in layers],
    }
    described = add(_encode(manifest), "manifest.v1+json")
    names = {
        "io.containerd.image.name": config.reference,
        "org.opencontainers.image.ref.name": config.reference.rpartition(":")[2],
    }
    index = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.index.v1+json",
        "manifests": [described | {"annotations": names}],
    }
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": _encode(index), **blobs}
    fresh = path.with_suffix(".new")
    with tarfile.open(fresh, "w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), epoch
            archive.addfile(entry, io.BytesIO(data))
    fresh.replace(path)
    return str(described["digest"])


def _encode(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
