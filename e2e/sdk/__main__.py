"""Every call of the Python SDK on the embedded cluster.

python -m e2e.sdk                 all versions of the SDK; the first run installs each, 60 MB
python -m e2e.sdk 1.9.4           a selection
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from e2e.embedded import embedded_cluster
from e2e.sdk import VERSIONS, command, environment


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.sdk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=", ".join(VERSIONS))
    versions = parser.parse_args().versions or VERSIONS
    if unknown := sorted(set(versions) - set(VERSIONS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(VERSIONS)}")
    results = []
    for version in versions:
        python = environment(version)
        with embedded_cluster() as kubeconfig:
            results.append(subprocess.run(command(python, kubeconfig), check=False).returncode)
    return 1 if any(results) else 0


if __name__ == "__main__":
    sys.exit(main())
