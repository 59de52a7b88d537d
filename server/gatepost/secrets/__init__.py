"""What tenants keep from everybody, their own agents included: sealed, and handed to tools only."""
