"""CartPole with a linear policy (Barto, Sutton and Anderson 1983; the constants are those of Gym's CartPole)."""

import math
import random

LONGEST = 200
"""Steps after which an episode ends as solved; the return is the number of steps."""


def run_episode(weights, rng):
    """The return of one episode."""
    position, speed, angle, spin = (rng.uniform(-0.05, 0.05) for _ in range(4))
    for step in range(LONGEST):
        state = (position, speed, angle, spin)
        force = 10.0 if sum(w * s for w, s in zip(weights, state, strict=True)) > 0 else -10.0
        swing = (force + 0.05 * spin**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * swing) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        push = swing - 0.05 * turn * math.cos(angle) / 1.1
        position, speed = position + 0.02 * speed, speed + 0.02 * push
        angle, spin = angle + 0.02 * spin, spin + 0.02 * turn
        if abs(position) > 2.4 or abs(angle) > 12 * math.pi / 180:
            return step + 1
    return LONGEST


def perturb(weights, direction, size):
    return [weight + size * part for weight, part in zip(weights, direction, strict=True)]


def collect(weights, seed, directions=8, size=0.2):
    """Returns of random perturbations of the weights in both directions (augmented random search, Mania 2018), and the
    mean return of the weights themselves."""
    rng = random.Random(seed)
    found = []
    for _ in range(directions):
        direction = [rng.gauss(0, 1) for _ in weights]
        there = run_episode(perturb(weights, direction, size), rng)
        back = run_episode(perturb(weights, direction, -size), rng)
        found.append({"direction": direction, "there": there, "back": back})
    mean = sum(run_episode(weights, rng) for _ in range(directions)) / directions
    return {"perturbations": found, "return": mean}


def improve(weights, perturbations, rate=0.04):
    """The weights after one step towards the better perturbations."""
    returns = [found[side] for found in perturbations for side in ("there", "back")]
    mean = sum(returns) / len(returns)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in returns) / len(returns)) or 1.0
    scale = rate / (len(perturbations) * deviation)
    for found in perturbations:
        weights = perturb(weights, found["direction"], scale * (found["there"] - found["back"]))
    return weights
