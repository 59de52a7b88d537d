"""What a tool function is given, and what it answers."""
