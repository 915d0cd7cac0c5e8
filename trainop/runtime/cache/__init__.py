"""Informers: in-memory caches of API objects, kept up to date by list and watch.

Data flow: a `Reflector` reads one collection (its next step is decided by `watcher`, a pure state machine), the
`Store` holds the objects, the `Informer` notifies handlers of each change. A `Cache` shares informers in the process.
"""
