"""GitLab's REST API as Octoprox serves it (`gitlab_*`): `tools` gathers them."""
