"""The releases of Kubernetes that are built and tested, oldest first, and which of them a run uses."""

from __future__ import annotations

import os
from dataclasses import dataclass

from e2e.cluster import ClusterError

VARIABLE = "TRAINOP_KUBERNETES"
"""The environment variable that selects the release of all control planes and nodes which do not name one."""
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
"""The programs of which each release has its own; all others serve every release."""


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Kubernetes; `version` such as v1.37.2 is that of its programs."""

    version: str

    @property
    def name(self) -> str:
        """Major and minor version, such as 1.37."""
        return self.version.removeprefix("v").rpartition(".")[0]

    @property
    def module(self) -> str:
        """The folder below `go` whose go.mod pins the release."""
        return f"kubernetes-{self.name}"

    @property
    def linker_flags(self) -> str:
        """Flags that set the version of a program; without them it reports v0.0.0."""
        major, minor = self.name.split(".")
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        return " ".join(f"-X k8s.io/component-base/version.{key}={value}" for key, value in values.items())


RELEASES = tuple(map(Release, ("v1.34.4", "v1.35.4", "v1.36.3", "v1.37.2")))
"""All run with etcd 3.6.8: the newest of them asks for 3.5.24 at least."""
OLDEST, NEWEST = RELEASES[0], RELEASES[-1]
DEFAULT = NEWEST
"""What `make test` and CI run, as it serves what older releases lack; `make test-kubernetes` also runs the oldest."""


def find_release(name: str = "") -> Release:
    """The release of this name (1.37, v1.37.2 or 1.37.2), else that of the environment, else the default.

    Raises `ClusterError` with the names there are.
    """
    wanted = name or os.environ.get(VARIABLE) or DEFAULT.name
    for release in RELEASES:
        if wanted.removeprefix("v") in (release.name, release.version.removeprefix("v")):
            return release
    raise ClusterError(f"Kubernetes {wanted}: not one of {', '.join(release.name for release in RELEASES)}")
