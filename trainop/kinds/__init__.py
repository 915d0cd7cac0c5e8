"""The kinds of jobs: what distinguishes each of them, as values and pure functions that the engine calls."""
