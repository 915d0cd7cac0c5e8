"""The programs of the tests of faults: a few lines of Python each, run as the first process of a container."""

from __future__ import annotations

WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the first process of a container ignores it otherwise
print("waits", flush=True)
while not os.path.exists("/tmp/end"):
    time.sleep(0.1)
time.sleep(0.5)  # so that the command that creates the file ends before
print("ends", flush=True)
"""
"""Runs until the test creates /tmp/end in the container."""

EXITS_WITH_1_ON_SIGTERM = WAITS.replace("143", "1")

FAILS = "raise SystemExit(1)"

TAKES_MEMORY = "print('takes 256 MiB', flush=True); block = b'x' * (256 << 20); print('took it', flush=True)"

FILLS_THE_VOLUME = """
import time
with open("/scratch/file", "wb") as file:
    file.write(b"x" * (32 << 20))
print("wrote 32 MiB", flush=True)
time.sleep(600)
"""

STEPS = 80
TRAINS = f"""
import json, os, signal, sys, time
import numpy as np

state = {{"step": 0, "weights": [4.0, -3.0]}}
if os.path.exists("/checkpoint/state.json"):
    with open("/checkpoint/state.json") as file:
        state = json.load(file)
print(f"starts after step {{state['step']}}", flush=True)
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
weights = np.array(state["weights"])
for step in range(state["step"] + 1, {STEPS} + 1):
    weights -= 0.02 * 2 * (weights - np.array([1.0, 2.0]))  # the gradient of the loss
    loss = float(((weights - np.array([1.0, 2.0])) ** 2).sum())
    print(f"step {{step}} loss {{loss:.6f}}", flush=True)
    with open("/checkpoint/steps", "a") as file:
        file.write(f"{{step}} {{loss:.6f}}\\n")
    if stopping:
        with open("/checkpoint/new", "w") as file:
            json.dump({{"step": step, "weights": weights.tolist()}}, file)
        os.replace("/checkpoint/new", "/checkpoint/state.json")
        print(f"saved step {{step}}", flush=True)
        sys.exit(143)
    time.sleep(0.1)
    while step == {STEPS // 2} and not state["step"] and not stopping:
        time.sleep(0.1)
"""
"""Gradient descent that saves its state in /checkpoint on SIGTERM, and continues from there. Half-way its first run
waits for SIGTERM. Each step is also recorded in /checkpoint/steps, with its loss, so that a lost or repeated step
shows."""

NOTES_SIGTERM = """
import os, signal, time

def note(*_):
    with open(f"/noted/{os.environ['HOSTNAME']}", "w") as file:
        file.write(str(time.time()))
    os._exit(143)

signal.signal(signal.SIGTERM, note)
while True:
    signal.pause()
"""
"""Writes when it got SIGTERM, in seconds since the epoch, into a file of its own in /noted."""

RING = """
import os, signal, socket, sys, time
rank, size = int(os.environ["PROCESS_ID"]), int(os.environ["NUM_PROCESSES"])
host, port = os.environ["COORDINATOR_ADDRESS"], int(os.environ["COORDINATOR_PORT"])
signal.signal(signal.SIGUSR1, lambda *_: os._exit(130))
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
links = []
if rank == 0:
    server = socket.create_server(("", port), backlog=size)
    links = [server.accept()[0] for _ in range(size - 1)]
while rank and not links:
    try:
        links = [socket.create_connection((host, port))]
    except OSError:
        time.sleep(0.05)  # rank 0 does not listen yet, or has no name
step, word = 0, b"x"
while word == b"x":
    step += 1
    if rank == 0:
        time.sleep(0.05)
        word = b"e" if os.path.exists("/tmp/end") else b"x"
    try:
        for link in links:
            if rank == 0:
                link.sendall(word)
            answer = link.recv(1)
            if not answer:
                raise OSError("connection closed by peer")
            if rank:
                word = answer
                link.sendall(b"x")
    except OSError as error:
        print(f"lost a peer: {error}", flush=True)
        os._exit(134)
    print(f"{time.time():.3f} step {step}", flush=True)
time.sleep(0.5)  # so that the command that creates the file ends before
"""
"""Ranks that exchange a byte per step with rank 0, and fail when they lose it. SIGUSR1 is a failure. They end when the
test creates /tmp/end in the container of rank 0."""
