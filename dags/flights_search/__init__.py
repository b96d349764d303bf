"""A search over the networks that say whether a flight arrives late: the best one is released."""
