"""The Debian packages that a machine lacks for a build, an image or a node, said in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping

NODE = {"unshare": "util-linux", "nsenter": "util-linux", "ip": "iproute2", "nft": "nftables"}
"""The package of each program that starts a node."""
IMAGES = {"mmdebstrap": "mmdebstrap"}
LINKING = ("gcc", "libc6-dev", "libseccomp-dev", "pkg-config")
"""What a program that links libseccomp statically is built with."""


def lacking(programs: Mapping[str, str]) -> list[str]:
    """The packages of those programs, given by name, that are neither on the PATH nor in /usr/sbin."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    missing = (package for program, package in programs.items() if shutil.which(program, path=path) is None)
    return list(dict.fromkeys(missing))


def lacking_for_linking() -> list[str]:
    """Nothing, or all of `LINKING`: a linker that fails does not say which package it misses."""
    program = "#include <seccomp.h>\nint main(void) { return seccomp_init(SCMP_ACT_ALLOW) == 0; }\n"
    if not (shutil.which("cc") and shutil.which("pkg-config")):
        return list(LINKING)
    with tempfile.TemporaryDirectory() as folder:
        command = ["cc", "-static", "-x", "c", "-", "-o", f"{folder}/program", "-lseccomp"]
        done = subprocess.run(command, input=program, capture_output=True, text=True, check=False)
    return list(LINKING) if done.returncode else []


def advice(packages: Iterable[str]) -> str:
    """Names the packages, and the command that installs them."""
    names = list(packages)
    return f"this needs {', '.join(names)}: on Debian, apt-get install --no-install-recommends {' '.join(names)}"
