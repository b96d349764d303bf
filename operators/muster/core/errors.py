"""Every error that muster raises, one tree.

::

    MusterError                 anything muster says no to
    ├── SpecError               what was asked for is wrong; asking again cannot help
    │   └── CannotSchedule      what was asked for can never run here (memory, GPUs)
    ├── StoreError              a volume, version or the store itself
    │   ├── NotFound            no such volume, version, partition, snapshot or job
    │   ├── Conflict            another writer was first, or a stale attempt came late
    │   │   └── Behind          what serves is newer than what was to serve
    │   ├── BadOutput           what a job wrote cannot become a version, now or another time
    │   ├── Corrupt             what is on disk is not what was committed
    │   └── Unavailable         the store service does not answer; what was asked may be asked again
    ├── ImageError              an environment is unknown or cannot be built
    ├── BackendError            the machine or cluster did not do what it was asked to
    │   ├── Forbidden           its access control says no, until it is granted
    │   └── Unreachable         it does not answer, or something that it needs for that does not
    └── DeploymentError         a model server refused a revision

A message names the thing, what was found, what was expected, and what to do next. Errors are
translated once, at the edge: a library's exception never reaches a user as it is.
"""

from __future__ import annotations


class MusterError(Exception):
    """Anything muster says no to."""


class SpecError(MusterError):
    """What was asked for is wrong; asking again cannot help, so it is never retried."""


class CannotSchedule(SpecError):
    """What was asked for can never run here, however long it waits."""


class StoreError(MusterError):
    """The store could not do what was asked; nothing half-done is visible."""


class NotFound(StoreError):
    """No such volume, version, partition, code snapshot or job."""


class Conflict(StoreError):
    """Another attempt or owner came first; what this one wanted was not done."""


class Behind(Conflict):
    """What is to serve is older than what does, or than what is just being brought there."""


class BadOutput(StoreError):
    """What a job wrote cannot become a version; the same code would write the same again."""


class Corrupt(StoreError):
    """What is on disk is not what was committed."""


class Unavailable(StoreError):
    """The store service does not answer. What was asked may have been done; asking again does it once."""


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
