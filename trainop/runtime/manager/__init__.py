"""The process: leader election, start and stop in order, stalls of the event loop, logs."""
