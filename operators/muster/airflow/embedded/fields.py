"""Has FastAPI make what checks a value when a value is checked, and read a function's signature once.

An app is made of routers in routers. Each time a router is put into another, FastAPI makes its routes anew, and for each
the validators of its parameters and of its answer: Airflow's API makes six thousand of them at its start, in a quarter
of its time, drops most with the routes that it makes anew, and uses a few dozen. Here each is made when a request needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def made_when_used() -> Iterator[None]:
    """Have all fields of FastAPI that are described in the block made at their first use, in it or later.

    A type that pydantic cannot check is then refused at the first request, not where the route is described: the block
    is for routes that are known to be right, such as those of a release of Airflow.
    """
    from fastapi._compat.v2 import ModelField
    from fastapi.dependencies import utils

    make, read = ModelField.__post_init__, utils._get_signature

    def later(field: Any) -> None:
        field.__class__ = _Later

    class _Later(ModelField):
        """A field until its first use."""

        __hash__ = ModelField.__hash__

        def __getattr__(self, name: str) -> Any:
            if name != "_type_adapter":
                raise AttributeError(name)
            make(self)
            return self.__dict__[name]

    ModelField.__post_init__ = later  # type: ignore[method-assign,assignment]
    utils._get_signature = cache(read)
    try:
        yield
    finally:
        ModelField.__post_init__ = make  # type: ignore[method-assign]
        utils._get_signature = read
