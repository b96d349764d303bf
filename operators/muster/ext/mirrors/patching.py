"""A large object made of stretches of one that its store has already, and of new bytes, so that only these travel.

S3 makes an object of parts, each sent or copied within the store (UploadPart and UploadPartCopy of its API). It takes parts of 5 MiB to
5 GiB, 10,000 of them, and the last one may be smaller; so a small change costs 5 MiB. Parts of an upload that a kill left lie there unseen,
and are paid for, until a rule of the bucket deletes them (AbortIncompleteMultipartUpload).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from muster.ext.mirrors.delta import Stretch

LEAST_PART_BYTES = 5 << 20
SENT_PART_BYTES, COPIED_PART_BYTES = 16 << 20, 128 << 20
MOST_PARTS = 10_000
LEAST_PATCHED_BYTES = 16 * LEAST_PART_BYTES
"""Smaller files travel whole: what is asked for costs more than it spares."""


def parts(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return the parts of an object, in order: each has at least 5 MiB, but for the last one."""
    found = list[Stretch]()
    for each in stretches:
        last = found[-1] if found and found[-1].first is None else None
        lacking = 0 if last is None else max(0, LEAST_PART_BYTES - last.size)
        if each.first is not None and each.size >= lacking + LEAST_PART_BYTES:
            if last is not None:  # it is filled up from what follows
                found[-1] = replace(last, size=last.size + lacking)
            found.append(Stretch(each.at + lacking, each.size - lacking, each.first + lacking))
        elif last is not None:
            found[-1] = replace(last, size=last.size + each.size)
        else:
            found.append(replace(each, first=None))
    return [part for each in found for part in _evenly(each)]


def sent(found: Iterable[Stretch]) -> int:
    """Return the bytes that travel."""
    return sum(each.size for each in found if each.first is None)


def _evenly(whole: Stretch) -> Iterator[Stretch]:
    most = SENT_PART_BYTES if whole.first is None else COPIED_PART_BYTES
    count = -(-whole.size // most)
    cuts = [whole.size * number // count for number in range(count + 1)]
    for begin, end in pairwise(cuts):
        yield Stretch(whole.at + begin, end - begin, None if whole.first is None else whole.first + begin)


def patch(store: Any, key: str, *, before: str, path: str, found: Iterable[Stretch]) -> None:
    """Make an object of the parts of another one and of a file of this machine; it is there whole, or not at all.

    :param store: a file system of s3fs. `before`: the other object's key. `path`: the file's.
    """
    bucket, name, _ = store.split_path(key)
    place = {"Bucket": bucket, "Key": name}
    other, rest, _ = store.split_path(before)
    upload = store.call_s3("create_multipart_upload", **place)["UploadId"]
    done = list[dict[str, Any]]()
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - text
            for number, each in enumerate(found, start=1):
                about = {**place, "UploadId": upload, "PartNumber": number}
                if each.first is None:
                    file.seek(each.at)
                    answer = store.call_s3("upload_part", Body=file.read(each.size), **about)
                else:
                    answer = store.call_s3(
                        "upload_part_copy",
                        CopySource={"Bucket": other, "Key": rest},
                        CopySourceRange=f"bytes={each.first}-{each.first + each.size - 1}",
                        **about,
                    )["CopyPartResult"]
                done.append({"PartNumber": number, "ETag": answer["ETag"]})
        store.call_s3("complete_multipart_upload", MultipartUpload={"Parts": done}, UploadId=upload, **place)
    except BaseException:
        with suppress(Exception):  # what is raised is the reason
            store.call_s3("abort_multipart_upload", UploadId=upload, **place)
        raise
