"""What stands between a call that may run and the tool: limits, and one effect per retry key."""
