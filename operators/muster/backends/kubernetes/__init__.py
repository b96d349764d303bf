"""Jobs on a Kubernetes cluster: pure functions from a spec to manifests and from objects to a status, and a thin client between."""
