"""What a Dag file may write, and how it is checked while it is parsed: no file, no store, no job."""
