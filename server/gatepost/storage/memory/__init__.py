"""Stores in this process's memory: for a laptop, for tests, and for a single process."""
