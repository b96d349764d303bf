"""Deployments on a cluster: a revision is one object of the serving platform, never edited, and one route shares traffic out."""
