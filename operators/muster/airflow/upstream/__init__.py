"""Changes made to other packages at run time, each in a file of its own; muster works without them, and starts later.

``MUSTER_PATCHES=off`` leaves all of them out. Each is also out with another release of its package than those that it was
tried with, which ``muster doctor`` says. :mod:`.internals` changes nothing: it hands on names of Airflow that are not public.
"""
