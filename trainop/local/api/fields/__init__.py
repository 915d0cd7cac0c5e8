"""Field management (`metadata.managedFields`), server-side apply and the other patch types, as pure functions."""
