"""Idempotency keys: a retried call has one effect, whatever the protocol."""
