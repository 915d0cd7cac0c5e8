"""The programs that an installation runs: their flags and settings, and how the operators are composed."""
