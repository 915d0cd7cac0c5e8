"""Controllers: sources of events, the work queue, workers and what a reconciler answers."""
