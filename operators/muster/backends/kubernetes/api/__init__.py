"""How the API server is spoken to."""
