"""From a job to the objects that stand for it; pure functions."""
