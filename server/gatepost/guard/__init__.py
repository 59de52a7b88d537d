<<<<<<< HEAD
"""What stands between a call that may run and the tool: limits, and one effect per retry key."""
=======
"""What stands between a checked call and its tool, the same for every protocol."""
>>>>>>> once
