"""Real MPI on the embedded cluster: Open MPI and MPICH, started over ssh and by `kubectl exec`."""
