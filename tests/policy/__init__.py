"""What decides about a call: limits, idempotency, approvals, revocation."""
