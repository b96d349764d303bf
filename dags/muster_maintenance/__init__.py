"""What keeps a site clean: jobs that nobody owns are ended, and what nobody needs is deleted."""
