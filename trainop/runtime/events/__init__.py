"""Events of the API: recorded, correlated and written."""
