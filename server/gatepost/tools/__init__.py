"""The authoring API of tools, resources and prompts, the registry of them, and the runner."""
