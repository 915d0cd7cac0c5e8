"""What `make e2e` does before it builds anything.

python -m e2e.realnode check [JOB]     whether this machine can run it; one line says what is missing
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from e2e.cluster.build import NODE
from e2e.cluster.node.node import check_requirements
from e2e.cluster.places import ClusterError, cache

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
    if not is_built() and not (shutil.which("go") or Path("/usr/local/go/bin/go").exists()):
        raise ClusterError("the programs of the node are built with Go, which is not installed (go.dev/dl)")
    if not shutil.which("mmdebstrap"):
        raise ClusterError("mmdebstrap is missing (Debian: apt-get install --no-install-recommends mmdebstrap)")
    if is_built():
        check_requirements()


def is_built() -> bool:
    return all((cache() / "bin" / name).exists() for name in NODE)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.realnode", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("check",))
    parser.add_argument("job", nargs="?", default="")
    try:
        check(parser.parse_args().job)
    except ClusterError as error:
        sys.exit(f"make e2e: {error}")


if __name__ == "__main__":
    main()
