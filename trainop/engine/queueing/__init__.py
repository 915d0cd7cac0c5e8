"""The operator's own integration with Kueue: a Workload for each job with a queue, whose admission decides when the job
may run and where."""
