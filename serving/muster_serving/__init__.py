"""The model servers: one runtime-neutral predictor under the KServe SDK and the Seldon Core wrapper.

This package runs in the images ``serve`` and ``seldon``, and imports nothing of muster.
"""
