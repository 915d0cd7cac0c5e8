"""A real Kubernetes control plane on loopback, from Go modules.

python -m e2e.cluster build                         the programs for the tests, once, about 10 minutes
python -m e2e.cluster build node                    those of a real node, about 5 more: python -m e2e.cluster.node
python -m e2e.cluster build --release 1.34 ...      those of another release of Kubernetes, beside the default
python -m e2e.cluster releases                      the oldest and the newest of them
python -m e2e.cluster up --release 1.34             the same release runs; $TRAINOP_KUBERNETES selects it for all
python -m e2e.cluster up                            prints the path of the administrator's kubeconfig
python -m e2e.cluster up --with controller-manager,scheduler,kwok --nodes 10
python -m e2e.cluster up --with kwok,binder         the cheapest way to run simulated pods
python -m e2e.cluster restart kube-apiserver        same ports, same data; also stop, start, kill, freeze, thaw
python -m e2e.cluster down

Several control planes can run side by side, each with its own --name.
"""

from __future__ import annotations

import argparse
import sys

from e2e.cluster.build import GROUPS, PROGRAMS, TESTED, NoGoError, build
from e2e.cluster.components import EXTRAS, ClusterOptions
from e2e.cluster.controlplane import PATIENCE, SIGNALS, ControlPlane
from e2e.cluster.places import ClusterError, default_data
from e2e.cluster.releases import NEWEST, OLDEST, RELEASES, VARIABLE

FAULTS = ("start", "stop", "restart", "kill", *SIGNALS)
EXIT_NO_GO = 3
"""Exit code if Go is missing, so that the Makefile can distinguish it from a failed build."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build programs from Go modules")
    building.add_argument("names", nargs="*", metavar="NAME", help=", ".join([*GROUPS, *PROGRAMS]))
    add_release(building)
    commands.add_parser("releases", help="print the oldest and the newest release of Kubernetes")
    for name in ("up", "down", "env", "status", *FAULTS):
        command = commands.add_parser(name)
        command.add_argument("--name", default="default", help="which control plane, if several (default: %(default)s)")
        if name == "up":
            add_release(command)
            command.add_argument("--with", dest="extras", default="", help=f"comma-separated: {', '.join(EXTRAS)}")
            command.add_argument("--nodes", type=int, default=1, help="simulated nodes, with kwok")
            command.add_argument("--flag", action="append", default=[], metavar="COMPONENT=--FLAG=VALUE")
        if name in FAULTS:
            command.add_argument("component")
    return parser.parse_args()


def add_release(command: argparse.ArgumentParser) -> None:
    names = ", ".join(release.name for release in RELEASES)
    command.add_argument(
        "--release", default="", help=f"of Kubernetes: {names} (default: ${VARIABLE}, else the newest)"
    )


def run(options: argparse.Namespace) -> None:
    if options.command == "build":
        names = tuple(name for given in options.names for name in GROUPS.get(given, (given,)))
        build(names or TESTED, release=options.release)
        return
    if options.command == "releases":
        print(OLDEST.name, NEWEST.name)
        return
    plane = ControlPlane(default_data(options.name))
    if options.command == "up":
        extras = tuple(extra for extra in options.extras.split(",") if extra)
        plane.up(ClusterOptions(extras=extras, nodes=options.nodes, flags=tuple(options.flag), release=options.release))
        print(plane.kubeconfig)
    elif options.command == "down":
        plane.down()
    elif options.command == "env":
        print(f"export KUBECONFIG={plane.kubeconfig}\nexport PATH={':'.join(plane.program_folders)}:$PATH")
    elif options.command == "status":
        print(plane.plan.url)
        for name in plane.plan.commands:
            print(f"{name:24} {plane.daemons.running(name) or 'stopped'}")
    else:
        apply_fault(plane, options.command, options.component)


def apply_fault(plane: ControlPlane, fault: str, component: str) -> None:
    """Starts, stops, kills, freezes or thaws one component."""
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
        print(error, file=sys.stderr)
        sys.exit(EXIT_NO_GO)
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
