"""End to end: real control planes, and what runs against them."""
