"""Two releases of muster side by side."""
