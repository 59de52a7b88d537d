"""GitLab's REST API with the interface of Octoprox (`gitlab_*`)."""
