"""The model servers: one runtime-neutral predictor under the KServe SDK and the Seldon Core wrapper.

Runs inside the images ``serve`` and ``seldon`` and stands alone: nothing here imports muster.
"""
