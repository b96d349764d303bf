"""What keeps a site clean: jobs without a task are ended, and what is not needed any more is deleted."""
