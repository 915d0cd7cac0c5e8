"""The init container with which PyTorch workers wait for the master.

Its template is built in or read from the file of `--pytorch-init-container-template-file`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml

from trainop.runtime import Json

DEFAULT_TEMPLATE = """\
- name: init-pytorch
  image: {{.InitContainerImage}}
  imagePullPolicy: IfNotPresent
  resources:
    limits:
      cpu: 100m
      memory: 20Mi
    requests:
      cpu: 50m
      memory: 10Mi
  securityContext:
    allowPrivilegeEscalation: false
    capabilities:
      drop: [ALL]
    seccompProfile:
      type: RuntimeDefault
  command:
    - sh
    - -c
    - >-
      for i in $(seq {{.MaxTries}}); do
      if getent hosts {{.MasterAddr}} || nslookup {{.MasterAddr}}; then exit 0; fi;
      echo waiting for master; sleep 2; done; exit 1
"""
"""Waits until the name of the master's service resolves, that is until the master is Ready. Unlike upstream's template
(`pkg/config/config.go`), it needs no privileges and accepts names in /etc/hosts. Its user is that of `as_user`."""

ROOT_IMAGE = "alpine:3.10"
"""The default image, whose user is root."""
USER = 65532
"""Runs the default image in a pod that must not run as root and names no user."""
_USER_FIELDS = ("runAsUser", "runAsGroup", "runAsNonRoot")

_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes an eighth of the time

_PLACEHOLDER = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}")


def as_user(container: Json, image: str, pod: Json, main: str) -> Json:
    """The container of the built-in template with the user of the job's own container, which is called `main`: no user
    if the job names none, since a namespace may enforce its range of users and refuse any other. `pod` is the spec of
    the template."""
    own: Json = next((each for each in pod["containers"] if each.get("name") == main), {})
    of_pod, of_main = (each if isinstance(each, dict) else {} for each in _contexts(pod, own))
    chosen = {name: of_main[name] for name in _USER_FIELDS if name in of_main}
    given = of_pod | chosen
    if given.get("runAsNonRoot") is True and "runAsUser" not in given and image == ROOT_IMAGE:
        chosen["runAsUser"] = USER  # otherwise the kubelet refuses to start the container
    return {**container, "securityContext": {**container["securityContext"], **chosen}}


def _contexts(*specs: Json) -> tuple[Any, ...]:
    return tuple(each.get("securityContext") for each in specs)


class TemplateError(ValueError):
    """The operator's init-container template is invalid; the message contains the reason."""


_MASTER_PLACEHOLDER = "stand-in-of-ours-master-0"
"""Replaces the master's address in the parsed template, so that parsing is cached for all jobs. Like the address, it is
a plain YAML string."""


@lru_cache(maxsize=64)
def render(template: str, master: str, image: str, tries: int) -> tuple[Json, ...]:
    """The containers of a template, which is a YAML list with `{{.MasterAddr}}`, `{{.InitContainerImage}}` and
    `{{.MaxTries}}`. Raises `TemplateError`."""
    return tuple(_fill(container, master) for container in _parse(template, image, tries))


def _fill(value: Any, master: str) -> Any:
    """Copies the value with the master's address inserted."""
    match value:
        case str():
            return value.replace(_MASTER_PLACEHOLDER, master)
        case list():
            return [_fill(each, master) for each in value]
        case dict():
            return {_fill(name, master): _fill(each, master) for name, each in value.items()}
    return value


@lru_cache(maxsize=4)  # one operator has one template, and parsing YAML takes half a millisecond
def _parse(template: str, image: str, tries: int) -> tuple[Json, ...]:
    """The containers with a placeholder for the master's address."""
    values = {"MasterAddr": _MASTER_PLACEHOLDER, "InitContainerImage": image, "MaxTries": str(tries)}
    unknown = {name for name in _PLACEHOLDER.findall(template) if name not in values}
    if unknown:
        raise TemplateError(f"init container template: unknown placeholder {', '.join(sorted(unknown))}")
    try:
        containers: Any = yaml.load(_PLACEHOLDER.sub(lambda match: values[match[1]], template), _SafeLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise TemplateError(f"init container template: {error}") from error
    if not isinstance(containers, list) or not all(isinstance(container, dict) for container in containers):
        raise TemplateError("init container template: must be a YAML list of containers")
    return tuple(containers)
