"""The kinds of jobs: one `Framework` per module, made of constants and pure functions that the engine calls."""
