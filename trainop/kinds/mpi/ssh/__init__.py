"""Transport ssh (mpi-operator): the launcher reaches workers by ssh, and its pod is made by a Job."""
