"""The life of a job, as far as it is the same wherever the job runs."""
