"""Names of images, as container runtimes of Kubernetes read them.

Source: github.com/distribution/reference `regexp.go` and `normalize.go`.
"""

from __future__ import annotations

import re

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_REFERENCE = re.compile(
    rf"(?P<name>(?:(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?/)?{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_MAX_NAME = 255


def full_name(image: str) -> str:
    """The name with registry and tag by which the image is pulled. Raises `ValueError` if it is no name of an image."""
    found = _REFERENCE.fullmatch(image)
    if found is None or len(found["name"]) > _MAX_NAME:
        raise ValueError(f"couldn't parse image name {image!r}: invalid reference format")
    host, slash, rest = found["name"].partition("/")
    if not slash:
        name = f"docker.io/library/{host}"
    elif host == "localhost" or re.search(r"[.:A-Z]", host):
        name = f"docker.io/library/{rest}" if host == "docker.io" and "/" not in rest else f"{host}/{rest}"
    else:
        name = f"docker.io/{host}/{rest}"
    tag = f":{found['tag']}" if found["tag"] else "" if found["digest"] else ":latest"
    return f"{name}{tag}{found['digest'] or ''}"


def default_policy(image: str) -> str:
    """The pull policy of a container that states none."""
    return "Always" if full_name(image).endswith(":latest") and "@" not in image else "IfNotPresent"
