"""The schemas of the CRDs, made from the same tables that validation uses."""
