"""`trainop run` and `trainop cluster`: the operator and a cluster in one process, for people without one."""
