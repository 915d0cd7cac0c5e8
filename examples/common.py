"""What the example programs share: a small regression problem, and arrays of numbers that travel over TCP."""

import hashlib
import socket
import struct
import time

import numpy as np

FEATURES = 32
RATE = 0.1


# The problem ----------------------------------------------------------------------------------------------------------


def shard(rank, samples=512):
    """This rank's share of the data; the true weights are the same for all."""
    truth = np.random.default_rng(0).normal(size=FEATURES)
    own = np.random.default_rng(1000 + rank)
    features = own.normal(size=(samples, FEATURES))
    return features, features @ truth + 0.01 * own.normal(size=samples)


def gradient(features, targets, weights):
    """Gradient and value of the mean squared error."""
    error = features @ weights - targets
    return 2 * features.T @ error / len(targets), float(error @ error) / len(targets)


def report(step, loss):
    if step == 1 or step % 10 == 0:
        print(f"step {step:3} loss {loss:.6f}", flush=True)


def report_end(weights):
    """A fingerprint that shows whether all ranks end with the same weights."""
    digest = hashlib.sha256(np.asarray(weights).astype(np.float32).round(4).tobytes()).hexdigest()[:16]
    print(f"done: weights {digest}", flush=True)


# The network ----------------------------------------------------------------------------------------------------------


def patiently(attempt, address, seconds=60):
    """The result of `attempt`; the name may not resolve yet, and nobody may listen there yet."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt(address)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def listen(address):
    """Listen at an address of this pod, that is its (host, port) as its peers know it."""
    return patiently(lambda at: socket.create_server(at, backlog=128), address)


def connect(address):
    return patiently(lambda at: socket.create_connection(at, timeout=None), address)


def endpoint(text):
    """`host:port` as a pair."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def send(peer, numbers):
    data = np.asarray(numbers).astype("<f8").tobytes()
    peer.sendall(struct.pack("!I", len(data)) + data)


def receive(peer):
    (size,) = struct.unpack("!I", exactly(peer, 4))
    return np.frombuffer(exactly(peer, size), "<f8")


def exactly(peer, size):
    data = b""
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise EOFError("the other end is gone")
        data += more
    return data


# Ways to train together -----------------------------------------------------------------------------------------------


class Star:
    """All ranks connected to one that leads: it adds up what they send, and answers with the mean."""

    def __init__(self, address, world, *, leads):
        self.leads = leads
        if leads:
            with listen(address) as listener:
                self.peers = [listener.accept()[0] for _ in range(1, world)]
        else:
            self.peers = [connect(address)]

    def mean(self, numbers):
        """The mean of what all ranks give, the same on every rank."""
        if not self.leads:
            send(self.peers[0], numbers)
            return receive(self.peers[0])
        gathered = [np.asarray(numbers), *(receive(peer) for peer in self.peers)]
        mean = sum(gathered) / len(gathered)
        for peer in self.peers:
            send(peer, mean)
        return mean


def train_in_step(rank, steps, mean):
    """Each rank computes a gradient on its share of the data, `mean` averages them, all apply the same update."""
    features, targets = shard(rank)
    weights = np.zeros(FEATURES)
    for step in range(1, steps + 1):
        own, loss = gradient(features, targets, weights)
        *average, loss = mean([*own, loss])
        weights = weights - RATE * np.array(average)
        report(step, loss)
    report_end(weights)


def serve_parameters(listener, trainers):
    """Hold some of the weights until all trainers have hung up: average their gradients, answer with new weights."""
    peers = [listener.accept()[0] for _ in range(trainers)]
    weights, steps = 0.0, 0
    try:
        while True:
            weights = weights - RATE * sum([receive(peer) for peer in peers]) / trainers
            steps += 1
            for peer in peers:
                send(peer, weights)
    except EOFError:
        print(f"served {len(weights)} of {FEATURES} weights for {steps} steps", flush=True)
    for peer in peers:
        peer.recv(1)  # nothing: returns when this one has hung up, too
    for peer in peers:
        peer.close()


def train_with_servers(rank, steps, servers):
    """Compute gradients on this rank's share of the data; each of the servers keeps its part of the weights.

    Returns when all trainers are through.
    """
    features, targets = shard(rank)
    peers = [connect(server) for server in servers]
    weights = np.zeros(FEATURES)
    for step in range(1, steps + 1):
        own, loss = gradient(features, targets, weights)
        for peer, part in zip(peers, np.array_split(own, len(peers)), strict=True):
            send(peer, part)
        weights = np.concatenate([receive(peer) for peer in peers])
        report(step, loss)
    report_end(weights)
    for peer in peers:
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)  # nothing: returns when the server has seen the last trainer hang up
