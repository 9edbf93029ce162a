"""From a request to a prompt."""
