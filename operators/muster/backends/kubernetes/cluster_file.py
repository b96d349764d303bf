"""A cluster as a person writes it down: a TOML file for the command line, a connection's extras for Airflow.

Both hold the settings of :class:`~muster.backends.kubernetes.site.ClusterSite` under their own names, and

======================  =========================================================================
``token_file``          a file that holds the operator's token for the store service
``outside_store_url``   address of the store service for programs outside the cluster
``user = "any"``        for the site's None, which TOML cannot say
======================  =========================================================================

A file also says ``kubeconfig`` and ``context``. Paths in it are relative to its own folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path

import tomllib

from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import SpecError
from muster.core.wire import SCHEMA_VERSION, loads

_TOKEN_FILE, _OUTSIDE = "token_file", "outside_store_url"
_KUBECONFIG, _CONTEXT = "kubeconfig", "context"
_REQUIRED = tuple(
    each.name for each in fields(ClusterSite) if each.default is each.default_factory is MISSING
)
_KNOWN = tuple(each.name for each in fields(ClusterSite))
_LONGEST_TOKEN = 8192


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """A namespace of a cluster, and by what right its store is used.

    :param token: for the store service, as it was read.
    :param store_url: where this process reaches the store service.
    :param renewed: returns the token that its file holds now; None where it is a password.
    """

    site: ClusterSite
    token: str = field(repr=False)
    store_url: str
    renewed: Callable[[], str] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """What a file of settings says. :param kubeconfig: None looks where ``kubectl`` looks, too."""

    settings: ClusterSettings
    kubeconfig: Path | None
    context: str | None


def read_file(path: Path) -> ClusterFile:
    """Read a file of settings, and the token beside it.

    :raises SpecError: it cannot be read, or a setting is unknown, missing or wrong; the message names both.
    """
    where = f"cluster file {path}"
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{where} cannot be read: {error}") from error
    kubeconfig, context = (_text(given, name, where) for name in (_KUBECONFIG, _CONTEXT))
    rest = {name: value for name, value in given.items() if name not in (_KUBECONFIG, _CONTEXT)}
    return ClusterFile(
        settings=read_settings(rest, where=where, folder=path.parent, also=(_KUBECONFIG, _CONTEXT)),
        kubeconfig=_path(kubeconfig, path.parent) if kubeconfig else None,
        context=context,
    )


def token_in(path: Path) -> tuple[str, ...]:
    """Return the token that a file of settings names, whatever else is wrong with the file; nothing where it cannot be read."""
    with suppress(OSError, ValueError, SpecError):
        token = _text(tomllib.loads(path.read_text(encoding="utf-8")), _TOKEN_FILE, "")
        return (_path(token, path.parent).read_text(encoding="utf-8").strip(),) if token else ()
    return ()


def read_settings(
    given: Mapping[str, object],
    *,
    where: str,
    folder: Path | None = None,
    password: str | None = None,
    also: tuple[str, ...] = (),
) -> ClusterSettings:
    """Build the settings that were written down, the token among them.

    :param where: what the messages call the place where they stand.
    :param folder: from where paths are relative; None takes only whole ones.
    :param password: the token itself, where the place keeps one as a secret.
    :param also: further settings that are known there, for the message that lists them.
    :raises SpecError: one is unknown, missing or wrong, or there is no token; no message shows a token.
    """
    _check_names(given, where, also)
    outside = _text(given, _OUTSIDE, where)
    site = _site({name: value for name, value in given.items() if name in _KNOWN}, where)
    file = _text(given, _TOKEN_FILE, where)
    if (file is None) == (not password):
        found = "two tokens, a password and a token_file" if password else "no token for the store service"
        raise SpecError(f"{where} has {found}: name one file that holds it, as {_TOKEN_FILE}")
    renewed = None if file is None else _TokenFile(_path(file, folder, where), where)
    return ClusterSettings(
        site=site,
        token=renewed() if renewed else _word(str(password), where, "its password"),
        store_url=_reached(site, outside, where),
        renewed=renewed,
    )


class _TokenFile:
    """A file whose token may be renewed while it is in use: it is read again when it has changed."""

    def __init__(self, path: Path, where: str) -> None:
        self._path, self._where = path, where
        self._seen = tuple[int, ...]()
        self._token = self._read()

    def __call__(self) -> str:
        """Return the token there is now; the last one where the file cannot be read, as while it is written."""
        with suppress(OSError, SpecError):
            found = self._path.stat()
            if (now := (found.st_ino, found.st_mtime_ns, found.st_size)) != self._seen:
                self._token, self._seen = self._read(), now
        return self._token

    def _read(self) -> str:
        return _word(_read_token(self._path, self._where), self._where, f"{_TOKEN_FILE} {self._path}")


def _check_names(given: Mapping[str, object], where: str, also: tuple[str, ...]) -> None:
    known = (*_KNOWN, _TOKEN_FILE, _OUTSIDE, *also)
    for name in given:
        if name not in known:
            raise SpecError(f"{where} has an unknown setting {name!r:.60}; known are {', '.join(known)}")
    missing = [name for name in _REQUIRED if name not in given]
    if missing:
        raise SpecError(f"{where} lacks {' and '.join(missing)}: ask the cluster's operator")


def _site(given: Mapping[str, object], where: str) -> ClusterSite:
    plain = {name: None if (name, value) == ("user", "any") else value for name, value in given.items()}
    try:
        return loads(
            ClusterSite, json.dumps({**plain, "kind": ClusterSite.__name__, "schema": SCHEMA_VERSION})
        )
    except (SpecError, TypeError) as error:  # TOML knows dates, JSON does not
        raise SpecError(f"{where}: {str(error).removeprefix(f'{ClusterSite.__name__}.')}") from error


def _reached(site: ClusterSite, outside: str | None, where: str) -> str:
    try:
        return replace(site, store_url=outside or site.store_url).store_url
    except SpecError as error:
        raise SpecError(f"{where}: {str(error).replace('store_url', _OUTSIDE, 1)}") from error


def _word(text: str, where: str, place: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > _LONGEST_TOKEN:
        raise SpecError(
            f"{where}: {place} holds no token: expected one word of ASCII, as the service made it"
        )
    return text


def _read_token(path: Path, where: str) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise SpecError(f"{where}: {_TOKEN_FILE} {path} cannot be read: {reason}") from error
    if not text:
        raise SpecError(f"{where}: {_TOKEN_FILE} {path} is empty")
    return text


def _path(text: str, folder: Path | None, where: str = "") -> Path:
    path = Path(text).expanduser()
    if folder is None and not path.is_absolute():
        raise SpecError(
            f"{where}: {text!r:.120} is a relative path, and has no folder to start from: write an absolute path"
        )
    return (folder or Path("/")) / path


def _text(given: Mapping[str, object], name: str, where: str) -> str | None:
    value = given.get(name)
    if value is not None and (not isinstance(value, str) or not value):
        raise SpecError(f"{where}: {name} is {value!r:.60}, need text")
    return value
