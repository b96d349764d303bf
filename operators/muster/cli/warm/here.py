"""Whether this process is a fork of a waiting process."""

forked = False
