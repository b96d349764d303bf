"""Images: locked environments, where they are found, and how a venv or a container is built of one."""
