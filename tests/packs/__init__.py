"""The built-in packs, through every door."""
