"""Store the secrets of tenants encrypted, and give them only to tools."""
