"""Fuzzing of HTTP servers by their OpenAPI documents."""
