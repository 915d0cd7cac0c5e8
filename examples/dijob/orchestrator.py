"""A client of di-server that sends what DI-engine's client sends (`ding/worker/coordinator/operator_server.py`)."""

import http.client
import json
import os
import time

NAMESPACE = os.environ["KUBERNETES_POD_NAMESPACE"]
NAME = os.environ["KUBERNETES_POD_NAME"]
SERVER = os.environ["KUBERNETES_SERVER_URL"].removeprefix("http://")
REPLICAS = "/v1alpha1/replicas"
RETRIES, PAUSE = 5, 1.0


class RefusedError(Exception):
    """The server's answer is not a success."""


def ask(method, path, body):
    """The data of the answer; connection errors are retried as DI-engine does."""
    for attempt in range(RETRIES + 1):
        try:
            connection = http.client.HTTPConnection(SERVER, timeout=30)
            connection.request(method, path, json.dumps(body))
            answer = connection.getresponse()
            decoded = json.loads(answer.read())
            connection.close()
            break
        except OSError:
            if attempt == RETRIES:
                raise
            time.sleep(PAUSE)
    if answer.status >= 400 or not decoded["success"]:
        raise RefusedError(f"{answer.status}: {decoded['message']}")
    return decoded["data"]


def demand(**replicas):
    """The body of a request for so many more or fewer `collectors` and `learners`."""
    counts = {role: {"replicas": count} for role, count in replicas.items()}
    return {"namespace": NAMESPACE, "coordinator": NAME, **counts}


def add(**replicas):
    return ask("POST", REPLICAS, demand(**replicas))


def remove(**replicas):
    return ask("DELETE", REPLICAS, demand(**replicas))


def replicas():
    """The addresses of all collectors and learners of this job."""
    return ask("GET", f"{REPLICAS}?namespace={NAMESPACE}&coordinator={NAME}", {})


def report_failed(collectors):
    """Has collectors replaced; takes their addresses and returns those of the new ones."""
    names = [address.rpartition(":")[0].rpartition(".")[0] for address in collectors]
    body = {"namespace": NAMESPACE, "coordinator": NAME, "collectors": names, "learners": []}
    return ask("POST", f"{REPLICAS}/failed", body)["collectors"]
