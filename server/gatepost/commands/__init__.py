"""The commands, one file each; `gatepost.cli` loads them by name."""
