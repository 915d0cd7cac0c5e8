"""Pod volumes as directories on the node, and the mounts that containers have of them.

`volume_references` and `render_files` are pure; `VolumeDirectory` writes to disk. Sources: kubelet `pkg/volume/*`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from trainop.local.node.pods.environment import (
    ConfigError,
    Placement,
    Reference,
    Sources,
    contents,
    expand,
    pod_field,
    resource_field,
)
from trainop.local.node.sandbox.filesystem import Mount
from trainop.runtime import Json
from trainop.runtime.lowlevel import exact_amount

_MODE = 0o644
_SECRET_MODE = 0o700
"""The bits of a Secret's files that are kept. On other nodes these files belong to root, and other users of a pod need
the bits of group or others. Here they belong to this user, and ssh refuses a key that others may read."""
_DEFAULT_SECONDS = 3600
_NODE_WRITTEN = ("configMap", "secret", "downwardAPI", "projected")
_TOKEN_MODE, _GROUP_TOKEN_MODE = 0o600, 0o640
_CREATE_DIRECTORY = "DirectoryOrCreate"
_CREATE_FILE = "FileOrCreate"


class VolumeError(Exception):
    """A volume cannot be set up or mounted; the message names it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file in a volume whose contents the node writes."""

    content: bytes
    mode: int


class TokenSource(NamedTuple):
    """A `serviceAccountToken` of a projected volume; an empty audience is that of the API server."""

    audience: str
    seconds: int

    @classmethod
    def of(cls, source: Json) -> TokenSource:
        """From the field `serviceAccountToken`."""
        return cls(source.get("audience") or "", int(source.get("expirationSeconds") or _DEFAULT_SECONDS))


Tokens: TypeAlias = Mapping[TokenSource, str]


def volume_tokens(pod: Json) -> list[tuple[str, TokenSource]]:
    """The tokens that the pod's volumes contain, each with the name of its volume."""
    return [
        (volume["name"], TokenSource.of(source["serviceAccountToken"]))
        for volume in pod["spec"].get("volumes") or ()
        for source in _written_sources(volume)
        if source.get("serviceAccountToken")
    ]


def shows_fields(pod: Json) -> bool:
    """Whether a volume of the pod contains fields of the pod, such as its annotations."""
    volumes = pod["spec"].get("volumes") or ()
    return any("downwardAPI" in source for volume in volumes for source in _written_sources(volume))


def volume_references(pod: Json) -> set[Reference]:
    """The ConfigMaps and Secrets that the pod's volumes contain."""
    found: set[Reference] = set()
    for volume in pod["spec"].get("volumes") or ():
        for source in _written_sources(volume):
            if "configMap" in source:
                found.add(Reference("configmap", source["configMap"].get("name", "")))
            if "secret" in source:
                secret = source["secret"]
                found.add(Reference("secret", secret.get("secretName") or secret.get("name", "")))
    return found


def _written_sources(volume: Json) -> list[Json]:
    if "projected" in volume:
        return list(volume["projected"].get("sources") or ())
    return [volume] if any(kind in volume for kind in _NODE_WRITTEN) else []


def render_files(
    volume: Json,
    pod: Json,
    sources: Sources,
    placement: Placement,
    tokens: Tokens = MappingProxyType({}),
    *,
    secret_bits: int = _SECRET_MODE,
) -> dict[str, File]:
    """The files by relative path of a configMap, secret, downwardAPI or projected volume. Raises `VolumeError`.

    `tokens` has at least those of `volume_tokens`. Of the modes of a Secret's files, `secret_bits` are kept.
    """
    own: Json = next((volume[kind] for kind in _NODE_WRITTEN if kind in volume), {})
    default = own.get("defaultMode")
    mode = _MODE if default is None else int(default)
    files: dict[str, File] = {}
    try:
        for source in _written_sources(volume):
            if "downwardAPI" in source:
                files |= _downward_files(source["downwardAPI"], pod, placement, mode)
            elif "serviceAccountToken" in source:
                files |= _token_file(source["serviceAccountToken"], pod, tokens, mode)
            else:
                files |= _object_files(source, sources, mode, secret_bits)
    except ConfigError as error:
        raise VolumeError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}') from error
    return files


def _token_file(source: Json, pod: Json, tokens: Tokens, mode: int) -> dict[str, File]:
    content = tokens[TokenSource.of(source)].encode()
    return {_inside(source["path"]): File(content, token_mode(pod["spec"], mode))}


def token_mode(spec: Json, default: int) -> int:
    """The mode of a token's file in a pod with this spec: if its containers have one user or a group for files, nobody
    else can read it (kubelet `pkg/volume/projected`)."""
    security = spec.get("securityContext") or {}
    if security.get("fsGroup") is not None:
        return _GROUP_TOKEN_MODE
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    own = ((container.get("securityContext") or {}).get("runAsUser") for container in containers)
    users = {security.get("runAsUser") if user is None else user for user in own}
    return _TOKEN_MODE if len(users) == 1 and None not in users else default


def _object_files(source: Json, sources: Sources, mode: int, secret_bits: int) -> dict[str, File]:
    """The files of a ConfigMap or Secret; none for a source that is empty."""
    if "configMap" in source:
        return _files_of(
            Reference("configmap", source["configMap"].get("name", "")), source["configMap"], sources, mode
        )
    if "secret" in source:
        named = source["secret"].get("secretName") or source["secret"].get("name", "")
        found = _files_of(Reference("secret", named), source["secret"], sources, mode)
        return {path: replace(file, mode=file.mode & secret_bits) for path, file in found.items()}
    if source:
        raise ConfigError(f"the source {min(source)} cannot be projected on a local node")
    return {}


def _files_of(reference: Reference, source: Json, sources: Sources, mode: int) -> dict[str, File]:
    found = sources.get(reference)
    if found is None:
        if source.get("optional"):
            return {}
        raise ConfigError(f"{reference} not found")
    values = contents(reference, found)
    if not source.get("items"):
        return {key: File(value, mode) for key, value in values.items()}
    files: dict[str, File] = {}
    for item in source["items"]:
        if item["key"] in values:
            files[_inside(item["path"])] = File(values[item["key"]], int(item.get("mode") or mode))
        elif not source.get("optional"):
            raise ConfigError(f"references non-existent config key: {item['key']}")
    return files


def _downward_files(source: Json, pod: Json, placement: Placement, mode: int) -> dict[str, File]:
    files: dict[str, File] = {}
    for item in source.get("items") or ():
        if ref := item.get("fieldRef"):
            text = pod_field(pod, ref.get("fieldPath") or "", placement)
        else:
            text = resource_field(pod, item.get("resourceFieldRef") or {}, placement)
        files[_inside(item["path"])] = File(text.encode(), int(item.get("mode") or mode))
    return files


def _inside(path: str) -> str:
    """The normalized relative path. Raises `ConfigError` if it is absolute or contains `..`."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise ConfigError(f"path {path!r} is outside the volume")
    return str(pure)


class VolumeDirectory:
    """The volumes of one pod, as directories below `root`.

    Persistent volume claims outlive the pod and are directories below `claims`.
    """

    def __init__(self, root: Path, claims: Path, *, isolated: bool = False, has_users: bool = False) -> None:
        """With `isolated`, volumes that could show other files of the host are refused. With `has_users`, containers
        have users of their own, and `root` and `claims` have to be out of reach of others."""
        self._root = root
        self._claims = claims
        self._isolated = isolated
        self._has_users = has_users

    def prepare(self, pod: Json, sources: Sources, placement: Placement, tokens: Tokens = MappingProxyType({})) -> None:
        """Creates all volumes or updates their contents. Raises `VolumeError` for the first one that fails."""
        for volume in pod["spec"].get("volumes") or ():
            path = self._root / volume["name"]
            if _written_sources(volume) or "projected" in volume:
                path.mkdir(parents=True, exist_ok=True)
                write_files(path, self._render(volume, pod, sources, placement, tokens))
            elif "hostPath" in volume:
                if self._isolated:
                    raise VolumeError(f'volume "{volume["name"]}": a run with --isolated has no hostPath volumes')
                _check_host_path(volume)
            else:
                source = self._source(volume, pod)
                source.mkdir(parents=True, exist_ok=True)
                if self._has_users:
                    source.chmod(0o777)

    def _render(
        self, volume: Json, pod: Json, sources: Sources, placement: Placement, tokens: Tokens
    ) -> dict[str, File]:
        return render_files(
            volume, pod, sources, placement, tokens, secret_bits=0o777 if self._has_users else _SECRET_MODE
        )

    def mounts(self, pod: Json, container: Json, environment: Mapping[str, str]) -> list[Mount]:
        """The mounts for the container's `volumeMounts`. Raises `VolumeError`."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
        found: list[Mount] = []
        for mount in container.get("volumeMounts") or ():
            volume = volumes.get(mount["name"])
            if volume is None:
                raise VolumeError(f'volume "{mount["name"]}" of container "{container["name"]}" is not defined')
            found.append(self._mount(volume, mount, pod, environment))
        return found

    def remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _mount(self, volume: Json, mount: Json, pod: Json, environment: Mapping[str, str]) -> Mount:
        """One `volumeMount`: a tmpfs for a memory-backed emptyDir of a single container, else a bind mount."""
        target = str(PurePosixPath("/", mount["mountPath"]))
        read_only = bool(mount.get("readOnly")) or bool(_written_sources(volume))
        if _is_memory_backed(volume) and _mount_count(volume["name"], pod) == 1 and not mount.get("subPath"):
            limit = (volume["emptyDir"] or {}).get("sizeLimit")
            return Mount(target, size=int(exact_amount(limit)) if limit else 0)
        source = self._source(volume, pod)
        if self._isolated and (mount.get("subPath") or mount.get("subPathExpr")):
            # A container could put a symbolic link there, which would be followed on the host.
            raise VolumeError(f'volume "{volume["name"]}": a run with --isolated has no subPath')
        if below := mount.get("subPath") or expand(mount.get("subPathExpr") or "", environment):
            try:
                source /= _inside(below)
            except ConfigError as error:
                raise VolumeError(f'subPath of volume "{volume["name"]}": {error}') from error
            if not source.exists() and not read_only:
                source.mkdir(parents=True)
        if not source.exists():
            raise VolumeError(f'volume "{volume["name"]}" has nothing at {below or source}')
        return Mount(target, str(source), read_only=read_only)

    def _source(self, volume: Json, pod: Json) -> Path:
        """The directory or file on the host that a volume refers to. Raises `VolumeError` for unsupported types."""
        own = self._root / str(volume["name"])
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if claim := volume.get("persistentVolumeClaim"):
            try:
                return self._claims / str(pod["metadata"].get("namespace", "")) / _inside(str(claim["claimName"]))
            except ConfigError as error:
                raise VolumeError(f'volume "{volume["name"]}": claim {error}') from error
        if _written_sources(volume) or volume.keys() & {"emptyDir", "ephemeral", "projected"}:
            return own
        kinds = sorted(volume.keys() - {"name"})
        if not kinds:
            return own  # Kubernetes treats a volume without a source as an emptyDir
        raise VolumeError(f'volume "{volume["name"]}": {kinds[0]} volumes cannot be mounted on a local node')


def _is_memory_backed(volume: Json) -> bool:
    return ((volume.get("emptyDir") or {}).get("medium") or "") == "Memory"


def _mount_count(name: str, pod: Json) -> int:
    """The number of containers that mount a volume: a per-container tmpfs cannot be shared."""
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return sum(any(mount["name"] == name for mount in one.get("volumeMounts") or ()) for one in containers)


def _check_host_path(volume: Json) -> None:
    """Creates or checks a hostPath according to its `type` (kubelet `pkg/volume/hostpath`). Raises `VolumeError`."""
    path, kind = Path(volume["hostPath"]["path"]), volume["hostPath"].get("type") or ""
    try:
        if kind == _CREATE_DIRECTORY or (not kind and not path.exists()):
            path.mkdir(parents=True, exist_ok=True)
        elif kind == _CREATE_FILE:
            path.touch()
    except OSError as error:
        raise VolumeError(f'hostPath volume "{volume["name"]}": {path}: {error.strerror}') from error
    checks = {"Directory": path.is_dir, "File": path.is_file, "Socket": path.is_socket}
    checks |= {"CharDevice": path.is_char_device, "BlockDevice": path.is_block_device}
    if kind in checks and not checks[kind]():
        raise VolumeError(f'hostPath type check failed: {path} is not a {kind} (volume "{volume["name"]}")')


def write_files(directory: Path, files: Mapping[str, File]) -> None:
    """Makes `directory` contain exactly `files`. Files are replaced atomically, unchanged files are not touched."""
    for relative, file in files.items():
        path = directory / relative
        if path.is_file() and path.read_bytes() == file.content and path.stat().st_mode & 0o777 == file.mode:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix="..", delete=False) as fresh:
            fresh.write(file.content)
        Path(fresh.name).chmod(file.mode)
        Path(fresh.name).replace(path)
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_file() and str(path.relative_to(directory)) not in files:
            path.unlink()
        elif path.is_dir():
            with suppress(OSError):  # the directory still contains files
                path.rmdir()
