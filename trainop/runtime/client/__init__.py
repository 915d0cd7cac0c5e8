"""The client of one API server: configuration, credentials, connections, requests and answers."""
