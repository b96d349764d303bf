"""The file systems of sources: how each is listed, read, and what its errors mean."""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import fsspec

from muster_ingest.connection import Connection
from muster_ingest.encoded import Decoder, encoding_of
from muster_ingest.errors import IngestError
from muster_ingest.options import AZURE, GOOGLE, options_of

_DENIED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")
_DENIED_KINDS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "ClientAuthenticationError",
    "AuthenticationException",
    "BadHostKeyException",
    "CredentialRetrievalError",
)
_TLS = ("WRONG_VERSION_NUMBER", "CERTIFICATE_VERIFY_FAILED")
_HERE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ENAMETOOLONG})
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "Last-Modified")
_BY_SECONDS = frozenset({"http", "https", "sftp", "ssh"})
"""Sources that tell the time of a change in whole seconds, and servers of which make their tags of it."""
_LONGEST_SETTLING_SECONDS = 3.0
_GONE = frozenset({404, 410})
_LINK_WITHIN = re.compile(r"[?#]")
"""In a link of a web server's list: it sorts the list, or leads within it, and names no file."""

T = TypeVar("T")


class Ask(Protocol):
    """Asks a source one question until there is an answer, as :meth:`muster_ingest.fetching.Patience.ask`."""

    def __call__(self, what: str, question: Callable[[], T], /) -> T:
        """Return the answer. :raises FileNotFoundError: the answer is that it is not there."""


class Place:
    """One source: its file system and its root there.

    :ivar again: what the next run does where the source was away. :ivar no_files: how many links, devices and the like the last list has left out.
    """

    again = "it goes on from what was fetched"

    def __init__(self, source: str, connection: Connection) -> None:
        self.source, self.connection = source, connection
        self._scheme = source.partition("://")[0]
        self.fs: Any = None
        self.root = ""
        self._newest = 0.0
        self._web = self._scheme in ("http", "https")
        self.no_files = 0

    def begin(self) -> None:
        """Open it; everything else is asked after this."""
        self.fs = self.open()
        self.root = str(self.fs._strip_protocol(self.source)).rstrip("/")

    @property
    def alone(self) -> bool:
        """Whether each thread needs a file system of its own."""
        return self._scheme in ("sftp", "ssh")

    @property
    def has_folders(self) -> bool:
        """Whether a file can be written only into a folder that is there."""
        return self.alone or self._scheme == "file"

    def open(self) -> Any:
        """Open the file system."""
        options = options_of(self.source, self.connection)
        if self.alone:
            from muster_ingest.sftp import CheckedSFTP

            return CheckedSFTP(**options, skip_instance_cache=True)
        return fsspec.filesystem(self._scheme, **options, use_listings_cache=False, skip_instance_cache=True)

    def objects(self, ask: Ask) -> Iterator[tuple[str, str, int, str]]:
        """Yield key, path below the root, size and identity of every object; -1 and "" where they are unknown.

        Links and what else is no file are left out, and counted in `no_files`.

        :param ask: asks for each page, folder and file by itself, so that an error which passes repeats only that request of a long list.
        """
        self.no_files = 0

        def asked(what: str, question: Callable[[], T], /) -> T:
            return ask(what, lambda: self._connected_ask(question))

        yield from self._found(asked)

    def _connected_ask(self, question: Callable[[], T]) -> T:
        with self._connected(self.fs):
            return question()

    def _found(self, ask: Ask) -> Iterator[tuple[str, str, int, str]]:
        for info in self._s3_objects(ask) if self._scheme in ("s3", "s3a") else self._walked(ask):
            name = str(info["name"])
            below = name[len(self.root) :].lstrip("/") if name != self.root else name.rpartition("/")[2]
            if name.startswith(f"{self.root}//"):
                below = name[len(self.root) + 1 :]
            if self._scheme in _BY_SECONDS:
                self._newest = max(self._newest, _changed(info))
            yield name, below, _size(info), identity(info)

    def settles_in(self, now: float) -> float:
        """Return after how many seconds no object that was listed can change under the time that was listed for it.

        What is read before could change once more within that second, to as many bytes, and count as unchanged ever after. A server whose
        clock is seconds ahead is not waited for.

        :param now: in seconds since 1970.
        """
        left = self._newest + 1.0 - now
        return left if 0.0 < left <= _LONGEST_SETTLING_SECONDS else 0.0

    def _s3_objects(self, ask: Ask) -> Iterator[dict[str, Any]]:
        """List page by page: in order, and never more than one page in memory."""
        bucket, _, prefix = self.root.partition("/")
        token: dict[str, str] = {}
        empty = True
        while True:
            page = ask("its list", partial(self._s3_page, bucket, prefix, token))
            for entry in page.get("Contents", ()):
                empty = False
                yield {**entry, "name": f"{bucket}/{entry['Key']}", "size": entry["Size"]}
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        if empty and prefix:
            yield ask(self.root, lambda: self._info(self.root))

    def _s3_page(self, bucket: str, prefix: str, token: dict[str, str]) -> dict[str, Any]:
        page: dict[str, Any] = self.fs.call_s3(
            "list_objects_v2", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", **token
        )
        return page

    def _walked(self, ask: Ask) -> Iterator[dict[str, Any]]:
        """List folder by folder. What is no file is counted: links are followed by no source.

        Not ``fs.walk``, which leaves out a folder below the first that cannot be listed: its files would count as gone.
        """
        # A web server may know a folder with its slash alone.
        top = self.source if self._web and self.source.endswith("/") else self.root or "/"
        file = None if self.source.endswith("/") else ask(top, lambda: self._one_file(top))
        if file is not None:
            yield file
            return
        folders = [top]
        while folders:
            for info in self._listed(ask, folders.pop(), top):
                if info["type"] == "directory":
                    folders.append(str(info["name"]))
                elif info["type"] != "file" or info.get("islink"):
                    self.no_files += 1
                elif (known := self._known(ask, info)) is not None:
                    yield known

    def _one_file(self, top: str) -> dict[str, Any] | None:
        """Return what is known of the root where it is one file, else None.

        ``fs.isfile`` is False where the request fails. A web or SFTP server would then be asked to list the file as a folder, and the
        ingest would find it empty. The other stores list a file as itself, and may deny the information on a whole bucket.
        """
        if not self._web and not self.alone and not self.fs.isfile(top):
            return None
        found = self._info(top)
        # A web server leads from a folder's name to the same with a slash, where its list is.
        folder = self._web and str(found.get("url", "")).partition("?")[0].endswith("/")
        return found if found["type"] == "file" and not folder else None

    def _listed(self, ask: Ask, folder: str, top: str) -> Iterator[dict[str, Any]]:
        """Yield what one folder holds; of folders those that are below it, and nothing twice."""
        try:
            found = ask(folder, lambda: self.fs.ls(folder, detail=True))
        except FileNotFoundError:
            if folder == top:
                raise
            return  # it went meanwhile, or is a web page's dead link
        for info in found:
            name = str(info["name"])
            within = self._web and _LINK_WITHIN.search(name, len(self.root))
            itself = info["type"] == "directory" and not name.rstrip("/").startswith(f"{folder.rstrip('/')}/")
            if not within and not itself:
                yield info

    def _known(self, ask: Ask, info: dict[str, Any]) -> dict[str, Any] | None:
        """Return what is known of a listed file, asked for alone where its list does not tell size and identity; None if it is gone."""
        if info.get("size") is not None and identity(info):
            return info
        try:
            return {**ask(info["name"], lambda: self._info(info["name"])), "name": info["name"]}
        except FileNotFoundError:
            return None

    def _info(self, name: str) -> dict[str, Any]:
        """Ask for one file. :raises FileNotFoundError: it is not there; fsspec says so of any failure of a web server's."""
        try:
            found: dict[str, Any] = self.fs.info(name)
        except FileNotFoundError as error:
            cause = error.__cause__
            if not self._web or cause is None or getattr(cause, "status", None) in _GONE:
                raise
            raise cause from None
        return found

    def let_go(self, fs: Any) -> None:
        """End a connection, where each file system has its own: a server may let few in. Its next use makes another one."""
        if self.alone:
            fs.client.close()

    def fetch(self, fs: Any, key: str, target: str) -> None:
        """Copy one object into a file, in bounded memory."""
        with self._connected(fs):
            fs.get_file(key, target)

    async def fetch_beside(self, key: str, target: str, size: int) -> None:
        """Do as :meth:`fetch`, in a task.

        :param size: as it was listed. Where it is -1 a cloud may hold the object compressed: parts of that cannot be decoded, each by
            itself, so it is read in one stream.
        """
        if size < 0 and self._scheme in GOOGLE:
            await self.fs._get_file(key, target, concurrency=1)
        elif size < 0 and self._scheme in AZURE:
            await self._fetch_decoded(key, target)
        else:
            await self.fs._get_file(key, target)

    async def _fetch_decoded(self, key: str, target: str) -> None:
        """Copy an object of Azure, whose own library decodes each part by itself, and of a part that holds two gzip files only the first.

        :raises IngestError: it is not encoded as it says.
        """
        from azure.core.exceptions import ResourceNotFoundError

        container, path, version = self.fs.split_path(key)
        try:
            async with self.fs.service_client.get_blob_client(container, path) as blob:
                stream = await blob.download_blob(version_id=version, decompress=False)
                encoding = encoding_of({"content_settings": stream.properties.content_settings})
                decoder = Decoder(encoding if encoding in ("gzip", "deflate") else "")
                with open(target, "wb") as file:  # noqa: PTH123 - as the libraries open it
                    async for data in stream.chunks():
                        file.writelines(decoder.decoded(data))
                    decoder.end()
        except ResourceNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), key) from None
        except zlib.error as error:
            raise IngestError(
                f"{self.source}: {key!r:.200} says that its encoding is {encoding}, and cannot be decoded ({error}): store it as that, or "
                "without a Content-Encoding"
            ) from None

    @contextmanager
    def _connected(self, fs: Any) -> Iterator[None]:
        """Have a connection for one use; one that has failed before is not used again, where each file system has its own."""
        if not self.alone:
            yield
            return
        fs.connect_again()
        try:
            yield
        except Exception as error:
            if not isinstance(error, FileNotFoundError):
                fs.client.close()
            raise

    def denied(self, error: BaseException) -> bool:
        """Whether an error says that the credentials are missing, wrong or not enough, or that TLS is not to be had."""
        said = f"{type(error).__name__}: {error}"
        statuses = {getattr(error, name, None) for name in ("status", "code", "status_code")}
        return (
            isinstance(error, PermissionError)
            or type(error).__name__ in _DENIED_KINDS
            or not statuses.isdisjoint({401, 403})
            or str(error).startswith("Forbidden:")  # gcsfs's 403, an OSError
            or any(word in said for word in (*_DENIED, *_TLS))
        )

    def passing(self, error: BaseException) -> bool:
        """Whether the same may work a little later."""
        if isinstance(error, OSError) and error.errno in _HERE and not getattr(error, "ingest_remote", False):
            return False
        module = type(error).__module__.partition(".")[0]
        if isinstance(error, (OSError, TimeoutError, EOFError)):
            return not isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
        return module in ("botocore", "aiobotocore", "aiohttp", "azure", "gcsfs", "paramiko", "fsspec")

    def refused(self, error: BaseException) -> IngestError:
        """Name the connection whose credentials do not do; nothing of them is shown."""
        why = f"({type(error).__name__}: {self.said(error):.300})"
        if "WRONG_VERSION_NUMBER" in str(error):
            return IngestError(
                f"{self.source} is asked by https, and the server speaks no TLS {why}: write http:// in the source, or in the connection's "
                "endpoint_url, or name the port of TLS"
            )
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return IngestError(
                f"{self.source} shows a certificate that is not trusted {why}: put the certificates of its authority (PEM) into the "
                "connection's extra as 'ca'"
            )
        if self._scheme == "file":
            return IngestError(f"{self.source} may not be read {why}: give the user of the job the right to")
        if not self.connection.conn_id:
            return IngestError(
                f"{self.source} asks for credentials, and no connection is given {why}: name an Airflow connection that may list and read it "
                "(connection= of the operator, --connection ID of the command). The variable AIRFLOW_CONN_ID makes one: "
                """AIRFLOW_CONN_LAKE='{"conn_type": "aws", "login": "KEY", "password": "SECRET"}' is the connection lake. """
                "A command also reads its client's own variables, such as AWS_ACCESS_KEY_ID"
            )
        return IngestError(
            f"{self.source} refuses {self.connection.named} {why}: give the operator a connection that may list and read it"
        )

    def said(self, error: BaseException) -> str:
        """Return what an error says, on one line, without anything of the connection."""
        return self.connection.hidden(str(error)) or "no reason is told"


def identity(info: dict[str, Any]) -> str:
    """Return what changes when an object does: its tag or, where it has none, the time of its last change."""
    settings = info.get("content_settings")
    for name in _TAGS:
        value = info.get(name) or (settings.get(name) if isinstance(settings, dict) else None)
        if isinstance(value, (bytes, bytearray)):
            value = value.hex()
        if value:
            return str(value).strip('"')
    for name in _TIMES:
        if info.get(name) is not None:
            value = info[name]
            return f"at {value.isoformat() if hasattr(value, 'isoformat') else value}"
    return ""


def _size(info: dict[str, Any]) -> int:
    """Return how many bytes an object has when it is read; -1 where that is unknown, as of one that is stored compressed."""
    size = info.get("size")
    return -1 if size is None or (size and encoding_of(info)) else int(size)


def _changed(info: dict[str, Any]) -> float:
    """Return when an object changed last, in seconds since 1970; 0 where that is unknown."""
    told = info.get("mtime") or info.get("Last-Modified")
    if isinstance(told, str):
        try:
            told = parsedate_to_datetime(told)
        except ValueError:  # no date: a server may answer anything
            return 0.0
    return told.timestamp() if isinstance(told, datetime) else 0.0
