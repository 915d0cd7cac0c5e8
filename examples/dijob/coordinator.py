"""Asks di-server for replicas, hands out tasks, and lets the job grow from one collector to four and back.

On the way one collector crashes. It is reported and replaced.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException

from examples.dijob import orchestrator
from examples.dijob.messages import post

STEPS, MOST = 24, 4
GROW, CRASH, SHRINK = 5, 10, 18
"""Steps at whose beginning the job changes."""
START = 60.0
"""Seconds in which a new pod has to answer."""


class Collectors:
    """The collectors of the job: addresses of pods that answer, or have just been created."""

    def __init__(self, addresses):
        self.addresses = list(addresses)
        self._answered = set()

    def collect(self, tasks):
        """The answers of all collectors, one task each. Those that fail are replaced, and their tasks are lost."""
        with ThreadPoolExecutor(MOST) as threads:
            answers = list(threads.map(self._ask_one, self.addresses, tasks))
        failed = [address for address, answer in zip(self.addresses, answers, strict=True) if answer is None]
        if failed:
            new = orchestrator.report_failed(failed)
            print(f"replaced {' '.join(failed)} by {' '.join(new)}", flush=True)
            self.addresses = [address for address in self.addresses if address not in failed] + new
        return [answer for answer in answers if answer is not None]

    def _ask_one(self, address, task):
        try:
            answer = post(address, "/collect", task, patience=0 if address in self._answered else START)
        except (OSError, HTTPException, ValueError):
            return None
        self._answered.add(address)
        return answer

    def crash_one(self):
        with contextlib.suppress(OSError, HTTPException, ValueError):
            post(self.addresses[0], "/crash", {}, patience=0)

    def grow(self, count):
        self.addresses += orchestrator.add(collectors=count)["collectors"]

    def shrink(self, count):
        gone = orchestrator.remove(collectors=count)["collectors"]
        self.addresses = [address for address in self.addresses if address not in gone]


def main():
    created = orchestrator.add(collectors=1, learners=1)
    collectors, learner = Collectors(created["collectors"]), created["learners"][0]
    weights = post(learner, "/weights", {}, patience=START)
    for step in range(1, STEPS + 1):
        if step == GROW:
            collectors.grow(MOST - 1)
        if step == CRASH:
            collectors.crash_one()
        if step == SHRINK:
            collectors.shrink(MOST - 1)
        tasks = [{"weights": weights, "seed": 1000 * step + number} for number in range(len(collectors.addresses))]
        found = collectors.collect(tasks)
        mean = sum(each["return"] for each in found) / len(found)
        print(f"step {step:2} collectors {len(found)} return {mean:.1f}", flush=True)
        every = [perturbation for each in found for perturbation in each["perturbations"]]
        weights = post(learner, "/learn", {"perturbations": every}, patience=START)
    listed = orchestrator.replicas()
    print(f"done: {len(listed['collectors'])} collector, {len(listed['learners'])} learner", flush=True)


if __name__ == "__main__":
    main()
