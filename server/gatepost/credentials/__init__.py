"""Credentials with which Gatepost signs in at other servers; never the caller's token."""
