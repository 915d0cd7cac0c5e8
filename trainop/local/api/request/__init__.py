"""Request processing by verb: list, watch, create, update, patch, delete, and the subresources."""
