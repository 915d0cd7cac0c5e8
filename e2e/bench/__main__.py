"""Training operators under load, measured side by side.

python -m e2e.bench build                          the programs, once (needs Go)
python -m e2e.bench run                            everything, three repetitions, about an hour on two cores
python -m e2e.bench run --scenario s1,s6 --only trainop,training-operator-tuned --repetitions 1
python -m e2e.bench quick                          under five minutes
python -m e2e.bench count                          API requests per job, from the audit log
python -m e2e.bench report FILE...                 the table and the charts of results that were kept
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import msgspec
import structlog

from e2e.bench.operators import HERE, OPERATORS, build_peers
from e2e.bench.processes import end_on_sigterm
from e2e.bench.report import BASE, write
from e2e.bench.runs import FLOOR, Plan, run
from e2e.bench.scenarios import QUICK, SCENARIOS
from e2e.cluster.build import NoGoError, build
from e2e.cluster.places import ClusterError

REPORT = HERE / "report"
OURS = "trainop"
NO_GO = 3
USUAL = {"run": tuple(SCENARIOS), "quick": tuple(QUICK), "count": ("s1", "s2")}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m e2e.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build")
    for name in ("run", "quick", "count"):
        command = commands.add_parser(name)
        command.add_argument("--only", default="", help=f"comma-separated: {', '.join((*OPERATORS, FLOOR))}")
        command.add_argument("--scenario", default="", help=f"comma-separated: {', '.join(SCENARIOS)}")
        command.add_argument("--repetitions", type=int, default=3 if name == "run" else 1)
        command.add_argument("--sizes", default="", help='for all scenarios, as {"jobs": 20}')
        command.add_argument("--report", type=Path, default=REPORT, help="folder for results, table and charts")
    report = commands.add_parser("report")
    report.add_argument("results", nargs="+", type=Path)
    report.add_argument("--report", type=Path, default=REPORT)
    return parser.parse_args()


def plans(options: argparse.Namespace) -> list[Plan]:
    """What a command runs: each scenario with the operators that make sense in it."""
    chosen = tuple(filter(None, options.scenario.split(",")))
    only = tuple(filter(None, options.only.split(",")))
    given = msgspec.json.decode(options.sizes) if options.sizes else {}
    made = []
    for scenario in chosen or USUAL[options.command]:
        operators = only or usual_operators(options.command, scenario)
        sizes = QUICK.get(scenario, {}) if options.command == "quick" else {}
        plan = Plan(operators, scenario, options.repetitions, {**sizes, **given}, audit=options.command == "count")
        made.append(plan)
    return made


def usual_operators(command: str, scenario: str) -> tuple[str, ...]:
    if command == "count":
        return (OURS, "trainop-leader", BASE)
    if command == "quick":
        return (OURS, BASE)
    more = {"s1": ("trainop-leader", "training-operator-default", FLOOR), "s2": ("training-operator-default",)}
    return (OURS, BASE, *more.get(scenario, ()))


async def measure(options: argparse.Namespace) -> None:
    end_on_sigterm()
    records = []
    for number, plan in enumerate(plans(options)):
        found = await run(plan, options.report / "results" / f"{options.command}-{plan.scenario}.json")
        records += found if number == 0 else found[1:]
    print(write(records, options.report))


def main() -> None:
    options = parse()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        if options.command == "report":
            print(
                write([r for path in options.results for r in msgspec.json.decode(path.read_bytes())], options.report)
            )
            return
        build()
        build_peers()
        if options.command != "build":
            asyncio.run(measure(options))
    except NoGoError as error:
        print(error, file=sys.stderr)
        sys.exit(NO_GO)
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
