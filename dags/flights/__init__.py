"""The reference pipeline: how likely is a flight out of New York to arrive late."""
