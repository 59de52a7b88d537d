"""Connections, checks at the edge, bodies and responses."""
