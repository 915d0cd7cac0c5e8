"""Who manages which field: managedFields, server-side apply, and the three kinds of patches."""
