"""Has FastAPI make what checks a value when a value is checked, and read a function's signature once.

An app is made of routers in routers. Each time a router is put into another, FastAPI makes its routes anew, and for each
the validators of its parameters and of its answer: Airflow's API makes six thousand of them at its start, in a quarter
of its time, drops most with the routes that it makes anew, and uses a few dozen. Here each is made when a request needs it.
And for each route that it makes, FastAPI reads what its function depends on, function by function, which takes another
third: a route of a router in a router in an app is read four times, and only the last is ever asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from muster.airflow.upstream.patch import Patch

PATCH = Patch(
    "fastapi",
    ("0.136.",),
    0.85,
    "include_router() makes each route anew, with its validators and its functions' signatures: make them at their first use.",
)

# What FastAPI makes of a route's function; all else of a route is what it was given.
_READ = (
    "dependant",
    "_flat_dependant",
    "_embed_body_fields",
    "body_field",
    "is_sse_stream",
    "is_json_stream",
    "app",
)


@contextmanager
def made_when_used() -> Iterator[None]:
    """Have all fields of FastAPI that are described in the block made at their first use, in it or later.

    A type that pydantic cannot check is then refused at the first request, not where the route is described: the block
    is for routes that are known to be right, such as those of a release of Airflow.
    """
    if PATCH.off:
        yield
        return
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


@contextmanager
def read_when_asked() -> Iterator[None]:
    """Have the functions of all routes that are made in the block read when a route is first asked, in it or later.

    A function that FastAPI cannot call is then refused at the first request: see :func:`made_when_used`.
    """
    if PATCH.off:
        yield
        return
    from fastapi.dependencies.models import Dependant

    routing: Any = import_module("fastapi.routing")
    make = routing.APIRoute.__init__

    def later(route: Any, *arguments: Any, **options: Any) -> None:
        read, read_more = routing.get_dependant, routing.get_parameterless_sub_dependant
        routing.get_dependant = lambda **_: Dependant(call=_nothing)
        routing.get_parameterless_sub_dependant = lambda **_: Dependant()
        try:
            make(route, *arguments, **options)
        finally:
            routing.get_dependant, routing.get_parameterless_sub_dependant = read, read_more
        for name in _READ:
            route.__dict__.pop(name, None)  # an earlier FastAPI has not all of them
        route.__dict__["_make"] = lambda whole: make(whole, *arguments, **options)

    routing.APIRoute.__getattr__ = _read  # it is asked for what is not there
    routing.APIRoute.__init__ = later
    try:
        yield
    finally:
        routing.APIRoute.__init__ = make


def _read(route: Any, name: str) -> Any:
    """Return what is missing in a route, once its function has been read."""
    read = route.__dict__.get("_make")
    if name in _READ and read is not None:
        whole = object.__new__(type(route))  # what was changed in the route since stays as it is
        whole.__dict__.update(route.__dict__)
        read(whole)
        for each in whole.__dict__.keys() & set(_READ):
            route.__dict__.setdefault(each, whole.__dict__[each])
        route.__dict__.pop("_make", None)
    if name not in _READ or name not in route.__dict__:  # it is: another thread may have read it meanwhile
        raise AttributeError(f"{type(route).__name__!r} object has no attribute {name!r}")
    return route.__dict__[name]


def _nothing() -> None:
    """Stand for a function that has not been read."""
