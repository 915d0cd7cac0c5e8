"""The init container with which PyTorch workers wait for the master.

Its template is built in or read from the file of `--pytorch-init-container-template-file`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import yaml

from trainop.runtime.objects.metadata import Json

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
    runAsNonRoot: true
    runAsUser: 65532
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
(`pkg/config/config.go`), it is allowed under the restricted Pod Security Standard and accepts names in /etc/hosts."""

_SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml takes an eighth of the time

_PLACEHOLDER = re.compile(r"\{\{-?\s*\.(\w+)\s*-?\}\}")


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
