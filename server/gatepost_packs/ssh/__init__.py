"""Create the tenant's own SSH key (`ssh_public_key`)."""
