"""Judge a configuration: every problem in it, with a stable id and a hint."""
