"""Reading the configuration from its file and the environment."""
