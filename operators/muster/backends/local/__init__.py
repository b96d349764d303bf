"""Jobs and deployments as processes of one Linux machine."""
