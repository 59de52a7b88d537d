"""What tenants keep from their own agents."""
