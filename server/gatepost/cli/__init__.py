"""The command line: a table of commands, each loaded when it runs."""

TIMINGS = "--timings"
"""The option of `gatepost serve` that prints how long each part of the start took."""
