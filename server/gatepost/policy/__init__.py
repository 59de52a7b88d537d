"""Decide about a call: limits, idempotency, approvals and revocation."""
