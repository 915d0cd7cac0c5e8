"""Reports with the clients as they are: transformers' callback and the SDK's function. Runs in their environment.

python client.py transformers|sdk|trainop HOST

`HOST` is the name of the operator's Service, which nothing resolves here: it is this machine.
"""

from __future__ import annotations

import importlib
import socket
import sys
from types import SimpleNamespace
from typing import Any

CLIENT, HOST = sys.argv[1:3]
resolve = socket.getaddrinfo


def at_home(host: Any, *rest: Any, **named: Any) -> Any:
    return resolve("127.0.0.1" if host == HOST else host, *rest, **named)


socket.getaddrinfo = at_home


def train_with_transformers() -> None:
    """A Trainer calls its callbacks so."""
    state = SimpleNamespace(is_world_process_zero=True, max_steps=20, global_step=0, epoch=0.0, log_history=[])
    control, args = SimpleNamespace(), SimpleNamespace()
    callback = importlib.import_module("transformers.integrations").KubeflowCallback()
    callback.on_train_begin(args, state, control)
    state.global_step, state.epoch = 20, 1.0
    callback.on_log(args, state, control, logs={"loss": 0.25, "learning_rate": 1e-4})
    callback.on_step_end(args, state, control)
    callback.on_train_end(args, state, control)


def train_with_the_sdk() -> None:
    update = importlib.import_module("kubeflow.trainer").update_trainjob_status
    if not update(progress_percent=100, estimated_remaining_seconds=0, metrics={"loss": 0.25}):
        sys.exit("the SDK says that its report failed")


def train_with_trainop() -> None:
    importlib.import_module("trainop.progress").report(step=20, total=20, loss=0.25)


{"transformers": train_with_transformers, "sdk": train_with_the_sdk, "trainop": train_with_trainop}[CLIENT]()
