"""The status table of `trainop run`."""

from __future__ import annotations

from rich.console import Console

from trainop.run.output import Output
from trainop.run.screen import JobView, Replica, Screen


async def shown(job: JobView) -> list[str]:
    """The table's lines as a terminal of 80 columns shows them."""
    console = Console(width=80, force_terminal=False)
    with console.capture() as captured:
        console.print(Screen(Output(console), [job]).table())
    return [line.rstrip() for line in captured.get().splitlines()]


async def test_the_title_shows_the_state_of_the_job():
    good, bad = [JobView("train", "PyTorchJob", ["Created", end]) for end in ("Succeeded", "Failed")]
    assert (await shown(good))[0] == "PyTorchJob train  ✓ Created  ✓ Succeeded"
    assert (await shown(bad))[0] == "PyTorchJob train  ✓ Created  ✗ Failed"


async def test_a_pod_in_the_place_of_another_is_a_restart_of_the_replica():
    job = JobView("train", "PyTorchJob")
    job.replica("master-0").pods = {"a": 0}
    job.replica("worker-0").pods = {"b": 2, "c": 1}
    table = await shown(job)
    assert [line.split() for line in table[2:]] == [
        ["master-0", "Pending", "0"],
        ["worker-0", "Pending", "4"],
    ]
    assert Replica("worker-1").restarts == 0


async def test_the_table_shows_the_last_line_of_each_replica_and_what_it_waits_for():
    job = JobView("train", "PyTorchJob")
    job.replica("master-0").last_line = "\x1b]0;owned\x07epoch 3 \x1b[31m[####  ] 71%\x1b[0m"
    job.replica("worker-0").last_line = "old"
    job.replica("worker-0").detail = "CrashLoopBackOff: back-off 10s"
    lines = await shown(job)
    assert lines[2].split(maxsplit=3) == ["master-0", "Pending", "0", "epoch 3 [####  ] 71%"]
    assert lines[3].endswith("CrashLoopBackOff: back-off 10s")
