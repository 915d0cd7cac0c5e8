"""Objects of the API as Python values: metadata, resources, patches, and the limits of what is kept."""
