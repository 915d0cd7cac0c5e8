"""Records core/v1 Events: `correlator` aggregates repeated events, `recorder` queues and writes them."""
