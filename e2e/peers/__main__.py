"""Builds peers: `python -m e2e.peers [NAME ...]`, by default all."""

from __future__ import annotations

import sys

from e2e.cluster.places import ClusterError
from e2e.peers import PEERS, build_peers


def main() -> int:
    try:
        build_peers(sys.argv[1:] or PEERS)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
