"""How much tenants, callers and tools may do, at once and in a time; whose turn it is."""
