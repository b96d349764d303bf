"""The `muster` command: for people at a terminal and for scripts. Imports nothing heavy until it must."""
