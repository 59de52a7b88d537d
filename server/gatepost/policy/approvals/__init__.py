"""Calls that need a person: who is asked, what was decided, and that it counts once."""
