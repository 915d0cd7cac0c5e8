"""An operator in a few lines: `Operator` wires client, cache, leader election, metrics, health and signals."""
