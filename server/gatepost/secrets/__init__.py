"""Secrets of tenants: sealed, and given only to tools."""
