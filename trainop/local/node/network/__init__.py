"""Pod addresses, cluster DNS, and outbound connections of pods."""
