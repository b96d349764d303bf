"""Every error that muster raises, one tree.

::

    MusterError                 every error of muster
    ├── SpecError               the request is wrong; asking again cannot help
    │   └── CannotSchedule      the request can never run here (memory, GPUs)
    ├── StoreError              a volume, version or the store itself
    │   ├── NotFound            no such volume, version, partition, snapshot or job
    │   ├── Conflict            another writer was first, or a stale attempt came late
    │   │   └── Behind          the version that serves is newer than the one to serve
    │   ├── BadOutput           the outputs of a job cannot become a version, now or another time
    │   │   └── EmptyOutput     it wrote none
    │   ├── Corrupt             the data on disk is not the data that was committed
    │   └── Unavailable         the store service does not answer; the request may be sent again
    ├── ImageError              an environment is unknown or cannot be built
    ├── BackendError            the machine or cluster did not do what it was asked to
    │   ├── Forbidden           the cluster's access control refuses; an administrator may grant it
    │   └── Unreachable         it does not answer, or something that it needs to answer does not
    └── DeploymentError         a model server refused a revision

A message names the thing, what was found, what was expected, and what to do next. Errors are
translated once, at the edge: a library's exception never reaches a user unchanged.
"""

from __future__ import annotations


class MusterError(Exception):
    """Base of every error of muster."""


class SpecError(MusterError):
    """The request is wrong; asking again cannot help, so it is never retried."""


class CannotSchedule(SpecError):
    """The request can never run here, however long it waits."""


class StoreError(MusterError):
    """The store could not do what was asked; nothing is half done."""


class NotFound(StoreError):
    """No such volume, version, partition, code snapshot or job."""


class Conflict(StoreError):
    """Another attempt or owner came first; this request changed nothing."""


class Behind(Conflict):
    """The version to serve is older than the one that serves, or than the one being released."""


class BadOutput(StoreError):
    """The outputs of a job cannot become a version; the same code would write the same again."""


class EmptyOutput(BadOutput):
    """The job wrote no file into an output's folder."""


class Corrupt(StoreError):
    """The data on disk is not the data that was committed."""


class Unavailable(StoreError):
    """The store service does not answer. The request may have been done; sending it again does it once."""


class ImageError(MusterError):
    """An image is unknown, or its environment cannot be built."""


class BackendError(MusterError):
    """The machine or the cluster did not do what it was asked to."""


class Forbidden(BackendError):
    """The cluster's access control says no; an administrator may grant it."""


class Unreachable(BackendError):
    """The cluster does not answer, or something that it needs to answer does not."""


class DeploymentError(MusterError):
    """A model server refused a revision; the one before still answers."""
