"""Benchmarks: ratios to the same work done by hand, side by side in one run. `python -m benchmarks` runs all."""
