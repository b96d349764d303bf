"""What a cluster is: its kinds, nodes and queues, and whether a job can ever run there."""
