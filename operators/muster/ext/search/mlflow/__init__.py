"""MLflow, called from outside of jobs: by its REST API, or where it is a file of this machine, by a process of an image that has MLflow.

``runs`` is what is asked of it, ``server`` and ``beside`` are the two ways; ``helper`` runs in the image's Python.
"""
