"""What goes on between requests: garbage collection and the end of namespaces."""
