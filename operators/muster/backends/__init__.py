"""Where jobs and deployments run, behind one Protocol: :class:`muster.backends.base.Backend`."""
