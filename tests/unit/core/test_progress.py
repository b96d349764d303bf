from __future__ import annotations

import pytest

from muster.core.errors import SpecError
from muster.core.progress import MOST_LINKS, MOST_NUMBERS, Pattern, Progress, Told, heard, parse
from muster.core.status import JobState, JobStatus
from muster.core.wire import dumps, loads

MNIST = r"Train Epoch: (?P<epoch>\d+) .*Loss: (?P<loss>[\d.]+)|Accuracy: \d+/\d+ \((?P<accuracy>[\d.]+)%\)"


def test_numbers_are_found_in_lines_for_people_with_what_was_said_before_them():
    pattern = Pattern(MNIST)
    said = [
        "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.3",
        "nothing",
        "Test set: Average loss: 0.05, Accuracy: 9833/10000 (98%)",
        "Train Epoch: 2 [0/60000 (0%)]\tLoss: 0.07",
    ]
    assert [pattern.told(line) for line in said] == [
        "muster: epoch=1 loss=2.3",
        "",
        "muster: epoch=1 loss=2.3 accuracy=98",
        "muster: epoch=2 loss=0.07",  # the accuracy of this epoch is not known yet
    ]
    assert all(parse(told) for line in said if (told := Pattern(MNIST).told(line)))


@pytest.mark.parametrize(
    "expression", ["(", "no group", r"(\d+)", r"(?P<Epoch>\d+)", r"(?P<epoch>\d)(?P<e1>a)" * 9]
)
def test_a_pattern_is_a_regular_expression_with_a_named_group_for_each_number(expression):
    with pytest.raises(SpecError, match="metric_pattern is "):
        Pattern(expression)


def test_numbers_by_name_and_of_how_much():
    assert parse("muster: epoch=3/10 loss=0.412 rows=120000 rate=-1.5e-3") == Told(
        progress={
            "epoch": Progress(value=3, total=10),
            "loss": Progress(value=0.412),
            "rows": Progress(value=120_000),
            "rate": Progress(value=-0.0015),
        }
    )


@pytest.mark.parametrize(
    ("url", "title"),
    [
        ("https://mlflow.example/#/experiments/1/runs/9f2c", "MLflow"),
        ("http://127.0.0.1:5000", "Data Docs"),
        ("http://[::1]:8080/a?b=c&d=%20", "é"),
        ("https://example.com/" + "a" * 1900, "x" * 40),
    ],
)
def test_a_link_under_its_title(url, title):
    assert parse(f"muster: link {title}={url}") == Told(links={title: url})


@pytest.mark.parametrize(
    "line",
    [
        "loss=0.4",
        "muster:epoch=3",
        " muster: epoch=3",
        "[muster] epoch=3",
        "muster: ",
        "muster: training begins",
        "muster: epoch=3,loss=1",
        "muster: epoch=3  loss=1",
        "muster: epoch = 3",
        "muster: Epoch=3",
        "muster: loss=nan",
        "muster: epoch=1 loss=nan",
        "muster: loss=inf",
        "muster: loss=1e400",
        "muster: loss=" + "9" * 400,
        "muster: loss=1e",
        "muster: loss=0x10",
        "muster: loss=1_000",
        "muster: loss=٣",  # a digit to Python
        "muster: epoch=1/0",
        "muster: epoch=1/-3",
        "muster: epoch=1/inf",
        "muster: epoch=1/2/3",
        "muster: " + " ".join(f"n{i}=1" for i in range(MOST_NUMBERS + 1)),
        "muster: " + " ".join(f"n{i}=1" for i in range(1000)),
        "muster: " + "n" * 33 + "=1",
        "muster: epoch=3\x1b[31m",
        "muster: link MLflow=javascript:alert(1)",
        "muster: link MLflow=JavaScript://example.com/%0aalert(1)",
        "muster: link MLflow=data:text/html,x",
        "muster: link MLflow=//example.com",
        "muster: link MLflow=https://",
        "muster: link MLflow=https:///x",
        "muster: link MLflow=https://user:word@example.com/",
        "muster: link MLflow=https://example.com/\"onclick='x'",
        "muster: link MLflow=https://example.com/<script>",
        "muster: link MLflow=https://example.com/'",
        "muster: link MLflow=https://example.com/a b",
        "muster: link MLflow=https://example.com/\u202e",
        "muster: link MLflow=https://example.com\\@evil.example",
        "muster: link =https://example.com/",
        "muster: link " + "x" * 41 + "=https://example.com/",
        "muster: link a\u200bb=https://example.com/",
        "muster: link MLflow=https://example.com/" + "a" * 10_000,
        "muster: " + "a=1 " * 2_000_000,
    ],
    ids=lambda line: line[:60],
)
def test_anything_else_is_a_line_like_any_other(line):
    assert parse(line) is None


def test_what_is_told_later_counts_and_of_too_many_the_oldest_go():
    told = Told()
    for number in range(100):
        told = told.then(
            Told(progress={f"n{number}": Progress(value=number), "epoch": Progress(value=number)}, links={})
        )
        told = told.then(Told(links={f"t{number}": f"https://example.com/{number}"}))
    assert len(told.progress) == MOST_NUMBERS
    assert told.progress["n99"] == Progress(value=99)
    assert list(told.links) == [f"t{number}" for number in range(100 - MOST_LINKS, 100)]


def test_a_log_is_heard_from_its_ranks_and_nobody_else():
    log = (
        b"muster: epoch=1\n[muster] muster: epoch=2\n[rank 0] muster: epoch=3/4 loss=0.5\n"
        b"[rank 1] muster: loss=0.25\n[rank 0] says [rank 1] muster: epoch=9\n"
        b"[rank 0] muster: link MLflow=https://example.com/1\n[rank 12] muster: link A b=https://example.com/2\n"
        b"[rank 0] muster: \xff=1\n"
    )
    assert heard(log) == Told(
        progress={"epoch": Progress(value=3, total=4), "loss": Progress(value=0.25)},
        links={"MLflow": "https://example.com/1", "A b": "https://example.com/2"},
    )


def test_of_a_flood_the_last_numbers_count_and_no_link_is_lost():
    flood = b"".join(b"[rank 0] muster: step=%d\n" % step for step in range(20_000))
    told = heard(b"[rank 0] muster: link MLflow=https://example.com/1\n" + flood)
    assert told.progress == {"step": Progress(value=19_999)}
    assert told.links == {"MLflow": "https://example.com/1"}


def test_it_is_written_for_people():
    assert [str(p) for p in parse("muster: epoch=3/10 loss=0.4123456789 rows=120000").progress.values()] == [
        "3/10",
        "0.412346",
        "120000",
    ]


def test_a_status_carries_it_through_the_ledger():
    told = parse("muster: epoch=3/10")
    status = JobStatus(
        job_id="a-job",
        state=JobState.RUNNING,
        submitted=1.0,
        progress=told.progress,
        links={"MLflow": "https://example.com/"},
    )
    assert loads(JobStatus, dumps(status)) == status


RUN = "\U0001f3c3 View run rare-wolf 12 at: https://mlflow.example/#/experiments/1/runs/9f2c"


def test_what_mlflow_itself_prints_at_the_end_of_a_run_is_its_link() -> None:
    link = {"MLflow": "https://mlflow.example/#/experiments/1/runs/9f2c"}
    assert parse(RUN) == Told(links=link)
    log = f"[rank 0] a\n[rank 3] {RUN}\n[rank 3] \U0001f9ea View experiment at: https://mlflow.example/\n"
    assert heard(log.encode()) == Told(links=link)


@pytest.mark.parametrize(
    "line",
    [
        RUN.replace("https", "javascript"),
        RUN.replace("mlflow.example", "user:word@mlflow.example"),
        RUN + " <script>",
        f"said: {RUN}",
    ],
)
def test_a_line_that_is_not_quite_mlflows_is_ordinary(line: str) -> None:
    assert parse(line) is None
