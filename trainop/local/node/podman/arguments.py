"""The arguments with which podman runs a container as kubelet would have it run. Pure functions.

Sources: podman-run(1), kubelet `pkg/kubelet/kuberuntime/kuberuntime_container.go` and `security_context.go`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainop.local.node.network.names import hostname_of
from trainop.local.node.pods.environment import memory_limit
from trainop.local.node.sandbox.filesystem import Mount
from trainop.local.node.sandbox.running import SandboxError
from trainop.local.node.sandbox.sandbox import Command
from trainop.runtime import Json

_FIXED = (
    "--detach",
    "--pull=never",
    "--log-driver=passthrough",  # the container writes to the descriptors of `podman run` itself
    "--no-hosts",  # /etc/hosts is a mount
    "--http-proxy=false",
    "--sdnotify=ignore",
    "--systemd=false",
    "--no-healthcheck",
    "--security-opt=label=disable",  # with SELinux, mounts would need labels that keep others from them
)

QUIET = ("--log-level=fatal",)
"""podman's own warnings would be among the output of the container; its errors are printed all the same."""

_OWN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TERM|TMPDIR|LANG|LANGUAGE|LC_.*|TZ|LD_.*|GLIBC_TUNABLES|MALLOC_.*|XDG_.*|"
    r"_?CONTAINERS?_.*|REGISTRY_AUTH_FILE|DOCKER_(CONFIG|HOST|CERT_PATH|TMPDIR)|STORAGE_(DRIVER|OPTS)|PODMAN_.*|"
    r"BUILDAH_.*|GO(DEBUG|GC|MAXPROCS|MEMLIMIT|TRACEBACK|RACE|COVERDIR)|LISTEN_.*|NOTIFY_SOCKET|DBUS_.*|SSL_CERT_.*|"
    r".*\*"
)
"""Variables that mean something to podman itself. A name that ends with an asterisk would stand for many."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a container gets of this node."""

    name: str
    network: str
    """As of the option `--network`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    """GPUs, by the names that `CUDA_VISIBLE_DEVICES` may have, which are those of CDI."""
    image_user: str = ""
    """The user that the image states."""


def run_arguments(pod: Json, container: Json, command: Command, place: Place) -> list[str]:
    """The arguments of podman for a container. Raises `SandboxError` if podman cannot run it."""
    return [
        *QUIET,
        "run",
        *_FIXED,
        f"--name={place.name}",
        *(f"--label={name}={value}" for name, value in place.labels.items()),
        f"--network={place.network}",
        f"--hostname={hostname_of(pod)}",
        *_limits(container),
        *_security(pod, container, place.image_user),
        *(f"--device=nvidia.com/gpu={each}" for each in place.devices),
        *(mount_argument(each) for each in command.mounts),
        *_variables(command.environment),
        *([f"--workdir={command.directory}"] if command.directory else []),
        *([f"--entrypoint={json.dumps(list(command.argv[: command.entry]))}"] if command.entry else []),
        command.image,
        *command.argv[command.entry :],
    ]


def own_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a container that podman finds in its own environment: other users do not see them there."""
    return {name: value for name, value in environment.items() if not _OWN.fullmatch(name)}


def _variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise SandboxError(f"the variable {name!r} cannot be set: its name or value is not one of a variable")
        yield f"--env={name}={value}" if _OWN.fullmatch(name) else f"--env={name}"


def mount_argument(mount: Mount) -> str:
    """One mount. Raises `SandboxError` for paths that podman cannot be told: it knows no way to quote them."""
    paths = mount.target + mount.source
    if not mount.source:
        if re.search(r'[,"\n]', mount.target):
            raise SandboxError(f"podman cannot mount a tmpfs at {mount.target!r}: a comma, a quote or a line break")
        size = f",tmpfs-size={mount.size}" if mount.size else ""
        return f"--mount=type=tmpfs,dst={mount.target},tmpfs-mode=1777,notmpcopyup{size}"
    if not re.search(r"[:\\]", paths):
        return f"--volume={mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
    if not re.search(r'[,"\n]', paths):
        return f"--mount=type=bind,src={mount.source},dst={mount.target}{',ro' if mount.read_only else ''}"
    problem = "paths with a colon or backslash and also a comma, a quote or a line break"
    raise SandboxError(f"podman cannot mount {mount.source!r} at {mount.target!r}: {problem}")


def _limits(container: Json) -> Iterator[str]:
    if limit := memory_limit(container):
        yield f"--memory={limit}b"
        yield f"--memory-swap={limit}b"


def _security(pod: Json, container: Json, image_user: str) -> Iterator[str]:
    shared, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    user, group = (own.get(name, shared.get(name)) for name in ("runAsUser", "runAsGroup"))
    if own.get("runAsNonRoot", shared.get("runAsNonRoot")) and _is_root(user, image_user):
        raise SandboxError("container has runAsNonRoot and image will run as root")
    if user is not None or group is not None:
        name = image_user.partition(":")[0] or "0" if user is None else int(user)
        yield f"--user={name}" if group is None else f"--user={name}:{int(group)}"
    groups = [*(shared.get("supplementalGroups") or ()), *filter(None, [shared.get("fsGroup")])]
    yield from (f"--group-add={int(each)}" for each in groups)
    if own.get("readOnlyRootFilesystem"):
        yield from ("--read-only", "--read-only-tmpfs=false")
    if own.get("privileged"):
        yield "--privileged"
    if own.get("allowPrivilegeEscalation") is False:
        yield "--security-opt=no-new-privileges"
    capabilities = own.get("capabilities") or {}
    yield from (f"--cap-drop={each}" for each in capabilities.get("drop") or ())
    yield from (f"--cap-add={each}" for each in capabilities.get("add") or ())


def _is_root(user: int | None, image_user: str) -> bool:
    """Names are not looked up: as with kubelet, a user that is not a number may be root."""
    if user is not None:
        return int(user) == 0
    name = image_user.partition(":")[0]
    return not name.isdecimal() or int(name) == 0
