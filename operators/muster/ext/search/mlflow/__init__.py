"""MLflow, called from outside of jobs: by its REST API, or where it is a file of this machine, by a process of an image that has MLflow.

``reach`` has what is asked of it and the two ways; ``helper`` runs in the image's Python.
"""
