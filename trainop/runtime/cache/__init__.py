"""Informers: lists and watches that keep a cache equal to what the API server holds."""
