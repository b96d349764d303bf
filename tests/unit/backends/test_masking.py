"""What of a secret is looked for in a job's log."""

import pytest

from muster.backends.local.supervisor import masked


@pytest.mark.parametrize(
    ("secrets", "looked_for"),
    [
        (["hunter2-9d81"], ["hunter2-9d81"]),
        (["-- BEGIN --\nMIIB1234\r\nXg==\n-- END --\n"], ["-- BEGIN --", "-- END --", "MIIB1234", "Xg=="]),
        (["abcd", "abcdefgh"], ["abcdefgh", "abcd"]),  # else efgh would be left over
        (["no", "", "a\nb\n"], []),  # they are in every other line
    ],
)
def test_each_line_of_a_secret_is_masked_the_longest_first(secrets, looked_for):
    found = masked(secrets)
    assert sorted(found) == sorted(looked_for)
    assert [len(text) for text in found] == sorted(map(len, found), reverse=True)
