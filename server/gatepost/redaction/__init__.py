"""Removes secrets from what leaves: one automaton for all secrets and all their encodings."""
