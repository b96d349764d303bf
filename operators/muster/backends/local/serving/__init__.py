"""Deployments on one machine: a keeper holds up the model servers that a file names, and the shares in it."""
