"""Runs of `trainop run` that are kept: each has a folder, written while it runs and read afterwards.

`folder` owns the layout of these folders and their names, `process` tells a run that lives from one that was killed,
`recorder` and `logfile` write objects and logs, and `reader` answers the API requests of commands from them.
"""
