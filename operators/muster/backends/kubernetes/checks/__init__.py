"""The doctor's checks of a cluster."""
