"""OCI archives of large layers: tar files that stay uncompressed on disk and are streamed into one archive."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

Json = dict[str, Any]
MEDIA = "application/vnd.oci.image"
SITE = "/opt/site"
"""Where packages of Python are that are not Debian's."""
ENVIRONMENT = (
    f"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{SITE}/bin",
    f"PYTHONPATH={SITE}",
    "PYTHONUNBUFFERED=1",
)


@dataclass(frozen=True, slots=True)
class LayerFile:
    """A tar file as a layer. `digest` is that of the file, which is also the layer's diff ID."""

    path: Path
    digest: str

    @classmethod
    def of(cls, path: Path) -> LayerFile:
        """The layer in `path`; its digest is computed once and kept beside it."""
        kept = path.with_suffix(".digest")
        if not kept.exists():
            with path.open("rb") as file:
                kept.write_text(f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}")
        return cls(path, kept.read_text())

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def write_image(
    output: IO[bytes],
    reference: str,
    layers: Sequence[LayerFile],
    architecture: str,
    environment: Sequence[str] = (),
    *,
    command: Mapping[str, Any] = MappingProxyType({"Cmd": ["/bin/sh"]}),
) -> None:
    """Writes the archive of an image, which `ctr images import` and `podman load` read, to a stream.

    `command` has `Cmd` or `Entrypoint`, as in an image's configuration.
    """
    with tarfile.open(fileobj=output, mode="w|") as archive:
        described = [_add_file(archive, layer) for layer in layers]
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": [*ENVIRONMENT, *environment], "WorkingDir": "/srv", **command},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{MEDIA}.manifest.v1+json",
            "config": _add_json(archive, config, "config.v1+json"),
            "layers": described,
        }
        names = {
            "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": reference.rpartition(":")[2],
        }
        index = [{**_add_json(archive, manifest, "manifest.v1+json"), "annotations": names}]
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": index}).encode())
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _add_json(archive: tarfile.TarFile, value: Json, kind: str) -> Json:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(archive, f"blobs/sha256/{digest}", data)
    return {"mediaType": f"{MEDIA}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def _add_file(archive: tarfile.TarFile, layer: LayerFile) -> Json:
    entry = tarfile.TarInfo(f"blobs/{layer.digest.replace(':', '/')}")
    entry.size = layer.size
    with layer.path.open("rb") as file:
        archive.addfile(entry, file)
    return {"mediaType": f"{MEDIA}.layer.v1.tar", "digest": layer.digest, "size": layer.size}


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A name to write to, renamed to `path` at the end, so that an interrupted build leaves nothing incomplete."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        yield fresh
        path.with_suffix(".digest").unlink(missing_ok=True)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def pack(folders: Sequence[tuple[Path, str]], target: Path) -> None:
    """Writes directories (source, path in the image) as a layer. Owners and times are always the same."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.endswith("__pycache__") and not entry.name.startswith("opt/"):
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w") as archive:
        for source, place in folders:
            archive.add(source, place, filter=plain)
