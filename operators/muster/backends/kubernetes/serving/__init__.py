"""Deployments on a cluster: a revision is an InferenceService that is never edited, and one route shares traffic out."""
