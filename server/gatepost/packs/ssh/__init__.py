"""The tenant's own SSH key (`ssh_public_key`): `tools` holds the tool, `key` makes the key."""
