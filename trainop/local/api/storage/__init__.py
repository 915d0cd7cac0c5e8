"""Objects by key and version with their history, in memory and on disk."""
