"""What the errors of sources mean."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("error", "denied"),
    [
        (OSError("Forbidden: https://storage.googleapis.com/storage/v1/b/lake/o"), True),
        (OSError("the page says Forbidden: nobody knows why"), False),
        (PermissionError("no"), True),
    ],
)
def test_what_says_that_the_credentials_do_not_do(error: Exception, denied: bool) -> None:
    from muster_ingest.connection import Connection  # type: ignore[import-not-found]
    from muster_ingest.places import Place  # type: ignore[import-not-found]

    assert Place("gs://lake/events", Connection()).denied(error) is denied
