"""An API server in one process: a store with watch that speaks the Kubernetes API, over sockets or by a plain call.

http -> server -> router -> reads | watches | writes | deletes -> store
                                  kinds (registry) <- core kinds, custom kinds
gc, namespaces, persistence listen to the store.
"""
