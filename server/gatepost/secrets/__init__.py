"""Store the secrets of tenants sealed, and give them only to tools."""
