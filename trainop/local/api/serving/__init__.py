"""The HTTP server, routing, discovery and OpenAPI."""
