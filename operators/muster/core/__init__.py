"""The nouns: what a job, a verdict, a version's address and a deployment are. Standard library only."""
