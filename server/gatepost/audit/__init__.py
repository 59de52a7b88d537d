"""Record what happened: calls, decisions, refusals, revocations and erasures."""
