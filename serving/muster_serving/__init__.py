"""The model servers: one runtime-neutral predictor under our own server, KServe's SDK and Seldon Core's wrapper.

This package runs in the images ``serve``, ``kserve`` and ``seldon``, and imports nothing of muster.
"""
