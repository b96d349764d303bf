"""What there is of jobs on the cluster, and what that means."""
