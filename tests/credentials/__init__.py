"""Credentials with which Gatepost signs in at other servers."""
