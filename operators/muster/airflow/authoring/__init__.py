"""What a Dag file may write, and its checks at parse time, which read no store and start no job."""
