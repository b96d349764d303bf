"""Versioned volumes and the job ledger, behind one Protocol: :class:`muster.volumes.protocols.Store`."""
