"""A tenant's files."""
