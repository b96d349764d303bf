"""gRPC of the Open Inference Protocol, beside HTTP: imported only where a deployment answers it."""
