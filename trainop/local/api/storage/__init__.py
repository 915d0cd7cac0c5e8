"""Storage: objects by key with their recent history in memory, and optional persistence in SQLite."""
