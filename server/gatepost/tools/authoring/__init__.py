"""Turn the functions of authors into offers."""
