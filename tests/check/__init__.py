"""The configuration and what is wrong with it."""
