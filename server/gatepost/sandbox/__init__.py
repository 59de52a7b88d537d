"""Programs of the system, run where they reach nothing but what they are given."""
