"""di-server: the HTTP API by which the coordinator of a DIJob adds, removes and replaces its replicas.

Requests are decoded and decided by pure functions (`bodies`, `query`, `groups`, `victims`), and carried out one at a
time for each job (`journal`), by any number of servers.
"""
