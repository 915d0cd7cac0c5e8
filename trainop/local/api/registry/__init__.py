"""The kinds that are served, and what the API server does for each of them."""
