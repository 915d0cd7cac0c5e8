"""A sample of seeds, and the variety and reports of seeds."""

from __future__ import annotations

import gc

import pytest

from tests.simulation import di_clients, gang_scheduler, mpi_users
from tests.simulation.draw import draw_script
from tests.simulation.examine import examine_seed
from tests.simulation.families import DI, GANG, MPI, STILL, family_of, number_in_family
from tests.simulation.fate import OF_JOBS
from tests.simulation.loop import ProcessLoop
from tests.simulation.still_draw import BLIGHTS
from trainop.engine.extensions import INFRA_RESTART_LIMIT, MODES, RESTART_SCOPE, SCOPES, SERVICE_MODE
from trainop.programs.schemes import FRAMEWORKS

SHARE = 300
PORTION = 20
FOUND = (481, 576)
"""A preempted pod that exits with 0: its failure has the time of its condition."""


@pytest.mark.parametrize("first", range(0, SHARE, PORTION))
def test_seeds_show_no_problem(first: int):
    for seed in range(first, first + PORTION):
        verdict = examine_seed(seed)
        assert not verdict.problem, verdict.report()


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_showed_a_problem_show_none(seed: int):
    verdict = examine_seed(seed)
    assert not verdict.problem, verdict.report()


def test_a_run_leaves_nothing_in_memory():
    """What a process keeps of each of a thousand runs is a megabyte, and another that each collection looks at."""

    def loops() -> set[int]:
        gc.collect()
        return {id(each) for each in gc.get_objects() if isinstance(each, ProcessLoop)}

    examine_seed(0)
    before = loops()
    examine_seed(1)
    assert loops() <= before


def test_seeds_draw_every_kind_of_fault_and_every_kind_of_job():
    scripts = [draw_script(seed) for seed in range(2 * SHARE) if not family_of(seed)]
    acts = {step.act for script in scripts for step in (*script.steps, *script.chaos, *script.encore)}
    assert acts == {
        *("create", "delete", "suspend", "resume", "scale", "annotate"),
        *(
            "kill",
            "stop",
            "freeze",
            "lag",
            "jump",
            "cut",
            "compact",
            "outage",
            "no quorum",
            "no admission",
            "contention",
        ),
        *("evict", "preempt", "drain", "delete pod", "vanish", "vanish unseen", "node"),
        *("disown", "relabel", "plant", "edit", "deny"),
    }
    jobs = [job for script in scripts for job in script.jobs]
    assert {job.kind for job in jobs} == set(FRAMEWORKS)
    annotated = {(job.kind, *item) for job in jobs for item in job.annotations.items()}
    for kind in FRAMEWORKS:
        assert {value for of, name, value in annotated if (of, name) == (kind, RESTART_SCOPE)} == set(SCOPES)
        assert {value for of, name, value in annotated if (of, name) == (kind, SERVICE_MODE)} == set(MODES)
        assert any((of, name) == (kind, INFRA_RESTART_LIMIT) for of, name, _ in annotated)
    assert {script.replicas for script in scripts} == {1, 2}
    assert {script.orderly for script in scripts} == {True, False}


def test_seeds_draw_every_deed_to_mpi_jobs_of_both_transports_and_to_gangs():
    scripts = [draw_script(seed) for seed in range(2 * SHARE) if family_of(seed) in {MPI, GANG}]
    acts = {step.act for script in scripts for step in (*script.steps, *script.chaos)}
    assert acts >= mpi_users.ACTS | gang_scheduler.ACTS | OF_JOBS | {"suspend", "resume", "scale"}
    jobs = [job for script in scripts for job in script.jobs if job.kind == "MPIJob"]
    assert {job.transport for job in jobs} == {"ssh", "exec"}
    assert {job.spec.get("launcherCreationPolicy") for job in jobs} == {None, "WaitForWorkersReady"}
    assert {script.gang for script in scripts} == {"", "volcano", "my-sched"}


def test_seeds_draw_everything_that_keeps_a_job_from_going_on_and_every_kind():
    seeds = [seed for seed in range(60 * len(BLIGHTS) * 17) if family_of(seed) == STILL]
    assert {number_in_family(seed) % len(BLIGHTS) for seed in seeds} == {*range(len(BLIGHTS))}
    jobs = [job for script in map(draw_script, seeds[:200]) for job in script.jobs]
    assert {job.kind for job in jobs} == {*FRAMEWORKS, "MPIJob", "DIJob"}
    assert all(draw_script(seed).standing for seed in seeds[:20])


def test_seeds_draw_every_request_to_di_servers_and_every_fault_of_them():
    scripts = [draw_script(seed) for seed in range(3 * SHARE) if family_of(seed) == DI]
    acts = {step.act for script in scripts for step in script.chaos}
    assert acts >= di_clients.ACTS | di_clients.OF_SERVERS
    assert {job.spec["cleanPodPolicy"] for script in scripts for job in script.jobs} == {"All", "None", "Running"}


def test_a_problem_is_reported_with_its_trace_and_the_command_that_replays_it():
    verdict = next(verdict for verdict in map(examine_seed, range(20)) if verdict.outcome.writes)
    report = verdict.report().splitlines()
    assert report[0].startswith(f"seed {verdict.seed}: ")
    assert any("POST" in line for line in report)
    assert report[-1] == f"replay with: make simulate SEED={verdict.seed}"
