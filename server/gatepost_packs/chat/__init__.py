"""Send messages to people, through the providers that Apprise supports."""
