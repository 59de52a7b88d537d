"""The protocol, in every revision."""
