"""A replica's side of the store service: its client, with its job's token, and how it hears how the gang goes on.

The calls are those of :mod:`muster.volumes.service.pods`; every request may be sent again.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import quote, urlsplit

from muster.core.errors import SpecError
from muster.core.keepalive import CONNECT_SECONDS, SMALL_BYTES, keep_alive
from muster.core.patience import Patience
from muster.core.replica import Going, Gone, Outlook, Replica
from muster.core.wire import dumps, loads

_ANSWER_SECONDS = 20.0
_SEAL_SECONDS = 120.0  # the last seal of a big gang waits for the others
_NEWS_SECONDS = 80.0  # the service answers after 50
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 1.0
_NO_SUCH_CALL = (404, 405)  # a SpecError has another status wherever the call is known
_LATER = (408, 425, 429)
_OVER = (404, 409, 410)


class Stale(Exception):
    """The gang was started again without this replica, or its job is over."""


class Refused(Exception):
    """The service refuses, and asking again cannot help."""


class StoreService:
    """Sends one replica's lines, seal and last word, and asks how its gang goes on.

    :param url: the service's address for pods.
    """

    def __init__(self, url: str, *, token: str, replica: Replica) -> None:
        self._url = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._path = (
            f"{self._url.path}/v1/jobs/{replica.job_id}/attempts/{replica.attempt}"
            f"/replicas/{replica.role}/{replica.index}"
        )

    def send(self, lines: bytes, *, offset: int) -> int:
        """Send whole lines from byte `offset` of the replica's stream; return how much of it the service has.

        :raises OSError: the service is away.
        :raises Stale: this start of the gang is over.
        :raises Refused: the service does not accept them.
        """
        what = f"lines?offset={offset}"
        answer = self._ask("POST", what, lines, seconds=_ANSWER_SECONDS, wanted=200)
        try:
            return int(json.loads(answer)["count"])
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"no store service answers there, but something else: {answer[:80]!r}") from error

    def seal(self, report: str, part: str) -> None:
        """Seal: with the last replica's seal the service commits, even if this pod gets no answer.

        :raises OSError: the service is away.
        :raises Stale: another start of the gang is the current one.
        :raises Refused: the staged files cannot become a version.
        """
        self._ask("PUT", "seal", f"{report}\n{part}".encode(), seconds=_SEAL_SECONDS, wanted=204)

    def gone(self, gone: Gone) -> Outlook:
        """Say that none of the replica's processes is left; return how the gang goes on.

        :raises OSError: the service is away.
        :raises Stale: this start of the gang is over.
        :raises Refused: the service is of an earlier release.
        """
        return _outlook(self._ask("PUT", "gone", dumps(gone).encode(), seconds=_SEAL_SECONDS, wanted=200))

    def outlook(self, known: Going) -> Outlook:
        """Return how the gang goes on, at once if that is new, else after most of a minute; it raises what `gone` does."""
        what = f"outlook?known={quote(known.value)}"
        return _outlook(self._ask("GET", what, b"", seconds=_NEWS_SECONDS, wanted=200))

    def _ask(self, method: str, what: str, body: bytes, *, seconds: float, wanted: int) -> bytes:
        """Send one request, without proxy or redirect: only the service may see the token."""
        https = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
            keep_alive(connection.sock, small=len(body) <= SMALL_BYTES)
            connection.sock.settimeout(seconds)
            connection.request(method, f"{self._path}/{what}", body=body, headers=self._headers)
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise OSError(f"the answer was cut off: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status != wanted:
            _refuse(response.status, answer)
        return answer


def _outlook(answer: bytes) -> Outlook:
    try:
        return loads(Outlook, answer)
    except SpecError as error:  # of a later release, which knows more ways
        raise Refused(str(error)) from error


def _refuse(status: int, body: bytes) -> NoReturn:
    """Raise the error that an answer stands for; an answer of a proxy means that the service is away."""
    try:
        document = json.loads(body)
        kind, said = str(document["error"]), str(document["message"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(
            f"no store service answers there, but something else: HTTP {status} {body[:80]!r}"
        ) from error
    said = f"{said} (HTTP {status}, {kind})"
    if kind == SpecError.__name__ and status in _NO_SUCH_CALL:
        raise Refused(said)
    if not 400 <= status < 500 or status in _LATER:
        raise OSError(said)
    raise (Stale if status in _OVER else Refused)(said)


class Herald:
    """One replica's ear, and its last word, in threads of its own; a service of an earlier release tells nothing.

    :param wake: called, in a thread, when there is something new.
    :param seconds: how long a service that is away is asked, once this replica is gone.
    """

    def __init__(self, service: StoreService, *, wake: Callable[[], None], seconds: float) -> None:
        self.over = False
        """Whether this attempt is over for the gang."""
        self.stale = ""
        """Why the service no longer accepts this replica; empty while it does."""
        self.answer: Outlook | None = None
        """How the gang goes on, once it is decided."""
        self.silent = False
        """Whether no answer will come."""
        self._service, self._wake, self._seconds = service, wake, seconds

    def start(self) -> None:
        """Begin to listen; the process must not fork after this."""
        threading.Thread(target=self._listen, name="herald", daemon=True).start()

    def say(self, gone: Gone) -> threading.Thread:
        """Say that no process of this replica is left; if its pod stays, wait for the answer. Return the thread."""
        thread = threading.Thread(target=self._say, args=(gone,), name="last-word", daemon=True)
        thread.start()
        return thread

    def _listen(self) -> None:
        self._tell(lambda: self._settled(Going.RUNS, seconds=float("inf")) is not None)

    def _say(self, gone: Gone) -> None:
        def ask() -> bool:
            outlook = self._persist(lambda: self._service.gone(gone), seconds=self._seconds)
            if outlook.going is Going.STOPS and gone.stays:
                outlook = self._settled(Going.STOPS, seconds=self._seconds)
            self.answer = outlook
            return True

        self._tell(ask)
        self.silent = self.answer is None
        self._wake()

    def _tell(self, ask: Callable[[], bool]) -> None:
        try:
            self.over = ask() or self.over
        except Stale as error:
            self.stale = str(error)
        except (Refused, OSError):
            return  # an earlier release, or away for long: the replica goes on as without us
        self._wake()

    def _settled(self, known: Going, *, seconds: float) -> Outlook:
        """Ask until the gang goes on in another way than the one that is known."""
        while True:
            outlook = self._persist(lambda: self._service.outlook(known), seconds=seconds)
            if outlook.going is not known:
                return outlook

    def _persist(self, ask: Callable[[], Outlook], *, seconds: float) -> Outlook:
        return Patience(seconds, first=_FIRST_PAUSE_SECONDS, longest=_LONGEST_PAUSE_SECONDS).persist(ask)
