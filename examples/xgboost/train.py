"""Gradient boosting over the network with nothing but what the operator injects into an XGBoostJob.

Every rank holds its own share of the rows. In each round all ranks build histograms of the gradients, add them up, and
so choose the same split, hence all end with equal trees. With xgboost installed its own tracker and collectives do it;
without it the ranks form a ring, as LightGBM's machines: rank 0 is MASTER_ADDR:MASTER_PORT, the others are WORKER_ADDRS
at WORKER_PORT.

    python -m examples.xgboost.train [--rounds N] [--backend auto|numpy|xgboost]
"""

import argparse
import importlib.util
import os
import socket

import numpy as np

from examples.common import connect, listen, patiently, receive, report, report_end, send

COLUMNS = 8
CUTS = np.linspace(-2, 2, 15)
RATE = 0.3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--backend", choices=("auto", "numpy", "xgboost"), default="auto")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    backend = options.backend
    if backend == "auto":
        backend = "xgboost" if importlib.util.find_spec("xgboost") else "numpy"
    print(f"rank {rank} of {world}, master at {master[0]}:{master[1]}, backend {backend}", flush=True)
    data = shard(rank)
    if backend == "xgboost":
        boost_with_xgboost(rank, world, master, options.rounds, data)
    else:
        machines = [master, *workers()][:world]
        boost(Ring(rank, machines), options.rounds, data)


def workers():
    """Absent if the master is alone."""
    hosts = os.environ.get("WORKER_ADDRS", "").split(",")
    return [(host, int(os.environ["WORKER_PORT"])) for host in hosts if host]


def shard(rank, samples=2000):
    own = np.random.default_rng(1000 + rank)
    rows = own.normal(size=(samples, COLUMNS))
    return rows, np.where(rows[:, 0] > 0, 2.0, -1.0) + np.sin(rows[:, 1]) + 0.5 * rows[:, 2]


def boost(ring, rounds, data):
    """Trees of one split each, every one fitted to what those before it leave over."""
    rows, targets = data
    bins = np.searchsorted(CUTS, rows)
    predicted, trees = np.zeros(len(rows)), []
    for round_ in range(1, rounds + 1):
        error = predicted - targets
        own = [len(rows), error @ error, *histograms(bins, np.ones(len(rows))), *histograms(bins, error)]
        count, loss, *sums = ring.total(own)
        column, cut, left, right = best_split(*np.reshape(sums, (2, COLUMNS, -1)))
        predicted += np.where(bins[:, column] <= cut, left, right)
        trees += [column, cut, left, right]
        report(round_, loss / count)
    report_end(trees)


def histograms(bins, numbers):
    """For each column the sum of the numbers in each of its bins."""
    return np.concatenate([np.bincount(column, numbers, len(CUTS) + 1) for column in bins.T])


def best_split(counts, errors):
    """Column and last bin on the left of the split that lowers the loss most, and what to add on either side."""
    rows, error = counts[0].sum(), errors[0].sum()
    rows_left, error_left = counts.cumsum(axis=1)[:, :-1], errors.cumsum(axis=1)[:, :-1]
    gain = error_left**2 / (rows_left + 1) + (error - error_left) ** 2 / (rows - rows_left + 1)
    at = column, cut = np.unravel_index(gain.argmax(), gain.shape)
    left, right = error_left[at] / (rows_left[at] + 1), (error - error_left[at]) / (rows - rows_left[at] + 1)
    return column, cut, -RATE * left, -RATE * right


class Ring:
    """Each rank hears from the one before it and tells the one behind it."""

    def __init__(self, rank, machines):
        self.rank, self.world = rank, len(machines)
        with listen(machines[rank]) as listener:
            self.behind = connect(machines[(rank + 1) % self.world])
            self.before, _ = listener.accept()

    def total(self, numbers):
        """The sum of all ranks' numbers, added up in the same order, hence the same to the last bit, on all."""
        gathered = {self.rank: np.asarray(numbers, float)}
        for place in range(self.rank, self.rank - self.world + 1, -1):
            send(self.behind, gathered[place % self.world])
            gathered[(place - 1) % self.world] = receive(self.before)
        return sum(gathered[rank] for rank in range(self.world))


def check_ranks(collective, rank, world):
    """Every rank adds one to its own place: it fails if a rank is missing or doubled."""
    if collective.get_world_size() != world:
        raise SystemExit(f"the tracker has {collective.get_world_size()} ranks, not {world}")
    counted = collective.allreduce(np.eye(world)[rank], collective.Op.SUM)
    if (counted != 1).any():
        raise SystemExit(f"the ranks are counted {counted}")


def boost_with_xgboost(rank, world, master, rounds, data):
    """The master runs XGBoost's tracker, where all ranks meet."""
    import xgboost  # noqa: PLC0415 - only where it is installed
    from xgboost import collective, tracker  # noqa: PLC0415

    host, port = patiently(socket.gethostbyname, master[0]), master[1]
    meeting = tracker.RabitTracker(world, host_ip=host, port=port) if rank == 0 else None
    if meeting:
        meeting.start()
    place = {"dmlc_tracker_uri": host, "dmlc_tracker_port": port, "dmlc_task_id": str(rank), "dmlc_retry": 10}
    with collective.CommunicatorContext(**place):
        known = f"rank {collective.get_rank()} of {collective.get_world_size()} of the tracker"
        print(f"{known}, XGBoost {xgboost.__version__}", flush=True)
        check_ranks(collective, rank, world)
        matrix, losses = xgboost.DMatrix(*data), {}
        parameters = {"max_depth": 1, "eta": RATE, "nthread": 1}
        watched = {"evals": [(matrix, "train")], "evals_result": losses, "verbose_eval": False}
        booster = xgboost.train(parameters, matrix, rounds, **watched)
        for round_, loss in enumerate(losses["train"]["rmse"], start=1):
            report(round_, loss**2)
        report_end(np.frombuffer(booster.save_raw("json"), np.uint8))
    if meeting:
        # the others still have to say goodbye to it
        meeting.wait_for()


if __name__ == "__main__":
    main()
