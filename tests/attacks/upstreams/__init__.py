"""Attacks by hostile upstreams, and on those of other tenants."""
