"""The trainings of examples/survive, interrupted in all ways, in `trainop run` and on a real node."""
