"""The built-in packs, over every protocol."""
