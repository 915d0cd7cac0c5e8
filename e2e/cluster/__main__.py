"""A real Kubernetes control plane on loopback, from Go modules.

python -m e2e.cluster build                         what the tests need, about 10 minutes, once
python -m e2e.cluster up                            prints the path of the administrator's kubeconfig
python -m e2e.cluster up --with controller-manager,scheduler,kwok --nodes 10
python -m e2e.cluster up --with kwok,binder         the cheapest way to run simulated pods
python -m e2e.cluster restart kube-apiserver        same ports, same data; also stop, start, kill, freeze, thaw
python -m e2e.cluster down

Several run side by side: give each a --name.
"""

from __future__ import annotations

import argparse
import sys

from e2e.cluster.build import PROGRAMS, STANDARD, NoGoError, build
from e2e.cluster.components import EXTRAS, Wishes
from e2e.cluster.controlplane import PATIENCE, SIGNALS, ControlPlane
from e2e.cluster.places import ClusterError, cache, default_data

FAULTS = ("start", "stop", "restart", "kill", *SIGNALS)
NO_GO = 3
"""Exit code that tells Makefile from a build that failed."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build programs from Go modules")
    building.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    for name in ("up", "down", "env", "status", *FAULTS):
        command = commands.add_parser(name)
        command.add_argument("--name", default="default", help="which control plane, if several (default: %(default)s)")
        if name == "up":
            command.add_argument("--with", dest="extras", default="", help=f"comma-separated: {', '.join(EXTRAS)}")
            command.add_argument("--nodes", type=int, default=1, help="simulated nodes, with kwok")
            command.add_argument("--flag", action="append", default=[], metavar="COMPONENT=--FLAG=VALUE")
        if name in FAULTS:
            command.add_argument("component")
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    if options.command == "build":
        build(tuple(options.names) or STANDARD)
        return
    plane = ControlPlane(default_data(options.name))
    if options.command == "up":
        extras = tuple(extra for extra in options.extras.split(",") if extra)
        plane.up(Wishes(extras=extras, nodes=options.nodes, flags=tuple(options.flag)))
        print(plane.kubeconfig)
    elif options.command == "down":
        plane.down()
    elif options.command == "env":
        print(f"export KUBECONFIG={plane.kubeconfig}\nexport PATH={cache() / 'bin'}:$PATH")
    elif options.command == "status":
        print(plane.plan.url)
        for name in plane.plan.commands:
            print(f"{name:24} {plane.daemons.running(name) or 'stopped'}")
    else:
        inflict(plane, options.command, options.component)


def inflict(plane: ControlPlane, fault: str, component: str) -> None:
    """Do to one component what was asked."""
    if component not in plane.plan.commands:
        raise ClusterError(f"{component}: not one of {', '.join(plane.plan.commands)}")
    if fault in SIGNALS:
        plane.signal(component, SIGNALS[fault])
    if fault in ("stop", "restart", "kill"):
        plane.stop(component, patience=0 if fault == "kill" else PATIENCE)
    if fault in ("start", "restart"):
        plane.start(component)


def main() -> None:
    try:
        run(parse())
    except NoGoError as error:
        print(f"what needs a real kube-apiserver is skipped: {error}", file=sys.stderr)
        sys.exit(NO_GO)
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
