"""The reference pipeline: the probability that a flight out of New York arrives late."""
