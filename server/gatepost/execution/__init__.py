"""Run work: its threads, its interruption, and its failures."""
