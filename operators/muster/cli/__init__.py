"""The `muster` command: for people at a terminal and for scripts. Heavy packages are imported only where needed."""
