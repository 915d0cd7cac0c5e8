"""MPIJob: one resource with two transports, `exec` (training-operator) and `ssh` (mpi-operator)."""
