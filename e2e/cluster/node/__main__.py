"""A cluster with one real node, in namespaces of its own; needs root.

python -m e2e.cluster build node                    its programs, once
python -m e2e.cluster.node up --image build/image/trainop-0.1.0.oci.tar
python -m e2e.cluster.node exec -- kubectl get nodes
python -m e2e.cluster.node load FILE...             more images
python -m e2e.cluster.node logs kubelet             or containerd, coredns, kube-proxy, kube-apiserver, ...
python -m e2e.cluster.node down
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from e2e.cluster.__main__ import add_release
from e2e.cluster.daemons import Daemons
from e2e.cluster.node.node import Node
from e2e.cluster.places import ClusterError


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster.node", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "exec", "load", "logs"):
        command = commands.add_parser(name)
        command.add_argument("--name", default="default", help="which node, if several (default: %(default)s)")
        if name == "up":
            add_release(command)
            command.add_argument("--image", type=Path, nargs="+", action="extend", default=[], metavar="FILE")
        if name == "load":
            command.add_argument("files", type=Path, nargs="+")
        if name == "exec":
            command.add_argument("arguments", nargs=argparse.REMAINDER)
        if name == "logs":
            command.add_argument("component")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """Runs one command and returns the exit code."""
    node = Node(options.name, release=options.release if options.command == "up" else "")
    if options.command == "up":
        node.up(options.image)
        print(node.kubeconfig)
    elif options.command == "down":
        node.down()
    elif options.command == "load":
        for file in options.files:
            node.run("ctr", "images", "import", str(file.absolute()))
    elif options.command == "logs":
        found = [Daemons(folder).log(options.component) for folder in (node.data, node.control)]
        print(next((log.read_text(errors="replace") for log in found if log.exists()), "no such log"), end="")
    else:
        arguments = options.arguments[1:] if options.arguments[:1] == ["--"] else options.arguments
        return subprocess.run([*node.inside(), *arguments], check=False).returncode
    return 0


def main() -> None:
    try:
        sys.exit(run(parse()))
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
