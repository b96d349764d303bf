"""What FastAPI would make at its start and drop or never use is made when it is used; what an app answers is the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import BaseModel

from muster.airflow.upstream.fields import made_when_used, read_when_asked

pytestmark = pytest.mark.filterwarnings("ignore:Using `httpx` with")


class Asked(BaseModel):
    name: str
    count: int = 1


class Answered(BaseModel):
    text: str


class NotChecked:
    """No type of pydantic's."""


def least(least: Annotated[int, Query(ge=1)] = 1) -> int:
    return least


def app() -> FastAPI:
    """An app of routers in routers, with a parameter, a body, a dependency and answers that are checked."""
    inner, outer, made = (
        APIRouter(prefix="/a", dependencies=[Depends(least)]),
        APIRouter(prefix="/b"),
        FastAPI(),
    )

    @inner.post("/{number}")
    def answer(number: int, asked: Asked, least: Annotated[int, Depends(least)]) -> Answered:
        if number < least:
            raise HTTPException(400, "too small")
        return Answered(text=asked.name * asked.count * number)

    @inner.get("/wrong", response_model=Answered)
    def wrong() -> Any:
        return {"text": 3}

    outer.include_router(inner)
    made.include_router(outer)
    return made


def said(app: FastAPI) -> list[Any]:
    client = TestClient(app, raise_server_exceptions=False)
    answers = [
        client.post("/b/a/2", json={"name": "x", "count": 2}),
        client.post("/b/a/2?least=3", json={"name": "x"}),
        client.post("/b/a/2?least=0", json={"name": "x"}),
        client.post("/b/a/two", json={"count": "many"}),
        client.get("/b/a/wrong"),
        client.get("/openapi.json"),
    ]
    return [(each.status_code, each.json() if each.status_code != 500 else None) for each in answers]


@pytest.mark.parametrize("later", [(made_when_used,), (read_when_asked,), (made_when_used, read_when_asked)])
def test_an_app_answers_and_describes_itself_as_ever(later: tuple[Callable[[], Any], ...]) -> None:
    with ExitStack() as block:
        for each in later:
            block.enter_context(each())
        lazy = app()
    assert said(lazy) == said(app())
    assert [code for code, _ in said(lazy)] == [200, 400, 422, 422, 500, 200]


def test_nothing_is_made_before_it_is_used_and_outside_all_is_made_at_once() -> None:
    def described() -> FastAPI:
        made = FastAPI()
        made.get("/", response_model=NotChecked)(lambda: None)
        return made

    with made_when_used():
        lazy = described()
    assert TestClient(lazy, raise_server_exceptions=False).get("/").status_code == 500
    with pytest.raises(Exception, match="Invalid args for response field"):
        described()


def test_a_field_has_no_other_names_than_before() -> None:
    with made_when_used():
        (route,) = [route for route in app().routes if getattr(route, "path", "") == "/b/a/{number}"]
    field: Any = route.body_field  # type: ignore[attr-defined]
    assert field.alias == "asked"
    assert not hasattr(field, "another")
    assert field in {field: 1}


class Kind(APIRoute):
    """A kind of route with a word of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.word = self.name.upper()


def test_a_function_is_read_when_its_route_is_asked_and_outside_at_once() -> None:
    def described() -> FastAPI:
        made = FastAPI()
        made.router.route_class = Kind

        @made.get("/{wrong}")
        def wrong(wrong: Annotated[int, Query()]) -> None:
            """A value of a path that is said to be none."""

        return made

    with read_when_asked():
        lazy = described()
    (route,) = [route for route in lazy.routes if isinstance(route, Kind)]
    assert route.word == "WRONG"
    assert "dependant" not in route.__dict__
    assert not hasattr(route, "another")
    with pytest.raises(AssertionError, match="path param"):
        _ = route.dependant
    with pytest.raises(AssertionError, match="path param"):
        described()
