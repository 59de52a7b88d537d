"""Redact secrets: one automaton for all secrets and all their encodings."""
