"""What `make e2e` does before it builds anything, and after it was killed.

python -m e2e.realnode check [JOB]     whether this machine can run it; one line says what is missing
python -m e2e.realnode cached          the same for the part `quick`, without a long build
python -m e2e.realnode clean           removes what killed runs have left
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from e2e.cluster import packages
from e2e.cluster.build import NODE, PROGRAMS, find_go, outdated
from e2e.cluster.node.cgroups import hierarchies
from e2e.cluster.packages import advice, lacking, lacking_for_linking
from e2e.cluster.places import ClusterError
from e2e.realnode import images
from e2e.realnode.cluster import remove_leftovers

HERE = Path(__file__).parent


def jobs() -> list[str]:
    return sorted(path.stem.removeprefix("test_") for path in HERE.glob("test_*.py"))


def check(job: str) -> None:
    """Raises `ClusterError` if the part does not exist, or with what is missing on this machine."""
    if job and job not in jobs():
        raise ClusterError(f"no such part: JOB={job} (there are {', '.join(jobs())})")
    if sys.platform != "linux":
        raise ClusterError("a real node needs Linux")
    if os.geteuid() != 0:
        raise ClusterError("a real node needs root")
    if reasons := missing(outdated(NODE)):
        raise ClusterError("; ".join(reasons))
    check_kernel()


def missing(unbuilt: list[str]) -> list[str]:
    """What this machine lacks to build these programs of the node, and for its images and its start."""
    reasons = []
    if unbuilt and find_go() is None:
        reasons.append("the programs of the node are built with Go, which is not installed (go.dev/dl)")
    wanted = lacking(packages.IMAGES | packages.NODE)
    if any(PROGRAMS[name].libseccomp for name in unbuilt):
        wanted += lacking_for_linking()
    if wanted:
        reasons.append(advice(wanted))
    return reasons


def check_kernel() -> None:
    """Raises `ClusterError` if namespaces, mounts, bridges, nftables or control groups are not available, as root in a
    container often finds."""
    steps = "mount --make-rprivate / && mount -t tmpfs none /mnt && ip link add b0 type bridge && nft add table ip t"
    sealed = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc")
    done = subprocess.run([*sealed, "sh", "-c", steps], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"this machine cannot run a node: {' '.join(done.stderr.split())}")
    closed = [str(root) for root in hierarchies() if not os.access(root, os.W_OK)]
    if closed or not hierarchies():
        raise ClusterError(
            f"this machine cannot run a node: control groups are not writable {' '.join(closed)}".strip()
        )


def check_cached() -> None:
    """Raises `ClusterError` unless the part `quick` runs without a long build."""
    check("quick")
    if missing := outdated(NODE):
        raise ClusterError(f"not built before: {', '.join(missing)}")
    if not images.is_built("base"):
        raise ClusterError("the image `base` was not built before")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.realnode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("check", "cached", "clean"))
    parser.add_argument("job", nargs="?", default="")
    options = parser.parse_args()
    try:
        if options.command == "check":
            check(options.job)
        elif options.command == "cached":
            check_cached()
        else:
            remove_leftovers()
    except ClusterError as error:
        sys.exit(f"make e2e: {error}")


if __name__ == "__main__":
    main()
