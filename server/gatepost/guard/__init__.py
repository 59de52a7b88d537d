"""What stands between a checked call and its tool, the same for every protocol."""
