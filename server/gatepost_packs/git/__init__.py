"""Version control in the tenant's workspace (`git`): `pack` holds the tool."""
