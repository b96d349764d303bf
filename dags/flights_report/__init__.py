"""The model card of every new flights model: how good it is, for whom, and where it comes from."""
