"""Departures come as messages of a topic; the features of the last hours stay fresh, and the deployed model is asked with them."""
