"""The worker as a backend sees it: a process, its log, its report, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.core.replica import Report
from muster.core.verdict import Cause, ExitCode
from muster.core.wire import loads


def test_an_entrypoint_runs_seals_and_reports(bench) -> None:
    bench.code(
        pipe__train="""
        from __future__ import annotations
        from pathlib import Path
        from pipe import parts

        def train(features: Path, model: Path, *, epochs: int, checkpoints: Path) -> dict[str, float]:
            print("epochs", epochs, (features / "x.txt").read_text())
            (model / "deep").mkdir()
            (model / "deep" / "weights").write_bytes(b"12345")
            return {"auc": parts.AUC}
        """,
        pipe__parts="AUC = 0.75",
        pipe__unused="",
    )
    (bench.root / "in").mkdir()
    (bench.root / "in" / "x.txt").write_text("rows")
    ended = bench.run(
        entrypoint="pipe.train:train",
        inputs={"features": ((str(bench.root / "in"),), False)},
        outputs=("model",),
        params={"epochs": "5"},
    )
    assert ended.code == ExitCode.SEALED, ended.log
    assert ended.lines == ["[rank 0] epochs 5 rows"]
    assert ended.report.metrics == {"auc": 0.75}
    assert ended.report.modules == ("pipe/parts.py", "pipe/train.py")
    assert ended.part.files == {"model": {"deep/weights": 5}}
    assert (ended.part.job_id, ended.part.attempt, ended.part.role, ended.part.index) == (
        "train-abc-1",
        1,
        "main",
        0,
    )


def test_a_command_runs_without_a_shell_in_a_copy_of_the_dags_folder(bench) -> None:
    bench.code(
        flights__train="""
        import sys, pathlib, flights.parts
        pathlib.Path("beside.txt").write_text("scripts write where they stand")
        pathlib.Path(sys.argv[1], "model.bin").write_text(sys.argv[2])
        """,
        flights__parts="",
    )
    ended = bench.run(
        command=("python", "train.py", "{outputs.model}", "{params.n};rm -rf $HOME"),
        outputs=("model",),
        params={"n": 3},
    )
    assert ended.code == ExitCode.SEALED, ended.log
    assert (bench.root / "staging" / "model" / "model.bin").read_text() == "3;rm -rf $HOME"
    assert sorted(p.name for p in (bench.root / "code" / "flights").iterdir()) == ["parts.py", "train.py"]
    assert ended.report.metrics == {}
    assert ended.report.modules is None


def test_what_a_script_leaves_in_its_copy_of_the_code_and_in_home_is_named(bench) -> None:
    bench.code(t="", own__train="")
    home = bench.root / "home"
    (home / "old").mkdir(parents=True)
    bench.environment["HOME"] = str(home)
    write = (
        "import os; os.makedirs('runs/1'); os.symlink('/tmp', 'data'); import t\n"
        "for name in ('mnist.pt', 'own/best.pt', 'runs/1/events'): open(name, 'w').close()\n"
        "for name in ('ray_results', 'old/more', '.cache'): os.mkdir(os.path.expanduser('~/' + name))"
    )
    ended = bench.run(command=("python", "-c", write))
    assert ended.code == ExitCode.SEALED
    assert ended.lines == [
        (
            "[muster] warning: left behind in the code's copy: mnist.pt, own/best.pt, runs/ (not kept); what is to "
            "be kept belongs into an output's folder: {outputs.NAME} in a command"
        ),
        (
            f"[muster] warning: left behind in {home}, new since it began: ray_results (not kept); what is to be kept belongs "
            "into an output's folder: {outputs.NAME} in a command"
        ),
    ]


def test_ranks_are_tagged_and_only_rank_0_reports(bench) -> None:
    bench.code(
        t="import os\ndef f():\n    r = os.environ['MUSTER_RANK']\n    print('I am', r)\n    return {'r': int(r) + 5}"
    )
    ended = bench.run(entrypoint="t:f", ranks=3)
    assert sorted(ended.lines) == [f"[rank {r}] I am {r}" for r in range(3)]
    assert ended.report.metrics == {"r": 5}


def test_the_process_of_an_entrypoint_is_what_a_script_would_find(bench) -> None:
    bench.code(
        t="""
        import faulthandler, gc, os, signal, sys, multiprocessing
        def square(n):
            return n * n
        def f():
            assert sys.path[0].endswith("/code") and not any("worker" in p for p in sys.path[:1]), sys.path
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert faulthandler.is_enabled() and gc.isenabled()
            assert sys.stdin.read() == "" and os.getsid(0) == os.getpid()
            assert sorted(map(int, os.listdir("/proc/self/fd")))[:3] == [0, 1, 2]
            # one in which forks say what they read, and the listing's own
            assert len(os.listdir("/proc/self/fd")) == 5, os.listdir("/proc/self/fd")
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [3]))
        """
    )
    ended = bench.run(entrypoint="t:f", ranks=2)
    assert sorted(ended.lines) == ["[rank 0] [9]", "[rank 1] [9]"]


def test_what_an_entrypoint_leaves_unflushed_is_written_at_its_end(bench) -> None:
    bench.code(
        t="""
        import atexit, sys
        def f(out):
            global kept
            kept = open(out / "log.txt", "w")
            kept.write("unflushed")
            sys.stdout.write("no newline")
            atexit.register(print, " but at exit")
        """
    )
    ended = bench.run(entrypoint="t:f", outputs=("out",))
    assert ended.lines == ["[rank 0] no newline but at exit"]
    assert (bench.root / "staging" / "out" / "log.txt").read_text() == "unflushed"
    assert set(ended.part.files["out"].values()) == {len("unflushed")}


def test_what_a_rank_raises_ends_the_log(bench) -> None:
    bench.code(train="def train():\n    print('before')\n    raise ValueError('loss is\\nnan')\n")
    ended = bench.run(entrypoint="train:train")
    assert ended.code == ExitCode.USER_ERROR
    assert ended.lines == [
        "[rank 0] before",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in train',
        "    raise ValueError('loss is\\nnan')",
        "ValueError: loss is",
        "nan",
        "rank 0: ValueError: loss is nan",
    ]
    verdict = ended.report.verdict
    assert (verdict.cause, verdict.rank, verdict.message) == (Cause.USER_ERROR, 0, "ValueError: loss is nan")
    assert verdict.advice == "mend the code at train.py:3 and run again; earlier stages are kept"
    assert ended.part is None


def test_an_error_of_musters_own_program_says_itself_what_to_do(bench) -> None:
    """Its code is not the author's to mend."""
    bench.code(
        t="class Away(Exception):\n    muster_advice = 'run again later'\n\ndef f():\n    raise Away('no answer')\n"
    )
    ended = bench.run(entrypoint="t:f")
    assert ended.lines == ["rank 0: Away: no answer"]
    verdict = ended.report.verdict
    assert (verdict.message, verdict.advice) == ("Away: no answer", "run again later")


@pytest.mark.parametrize(
    ("body", "code", "cause", "message"),
    [
        ("raise KeyError('x')", ExitCode.USER_ERROR, Cause.USER_ERROR, "KeyError: 'x'"),
        ("import sys; sys.exit(3)", ExitCode.USER_ERROR, Cause.USER_ERROR, "SystemExit: 3"),
        ("import sys; sys.exit('no rows')", ExitCode.USER_ERROR, Cause.USER_ERROR, "SystemExit: no rows"),
        ("raise KeyboardInterrupt", ExitCode.USER_ERROR, Cause.USER_ERROR, "KeyboardInterrupt"),
        ("raise MemoryError", ExitCode.OUT_OF_MEMORY, Cause.OUT_OF_MEMORY, "MemoryError"),
        (
            "raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')",
            ExitCode.OUT_OF_MEMORY,
            Cause.GPU_OUT_OF_MEMORY,
            "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (
            "return {'loss': float('nan')}",
            ExitCode.USER_ERROR,
            Cause.USER_ERROR,
            "metric 'loss' is nan: need a finite number; check the loss for divergence",
        ),
        (
            "return [1]",
            ExitCode.USER_ERROR,
            Cause.USER_ERROR,
            "the entrypoint returned list: return None or a dict of metrics such as {'auc': 0.72}",
        ),
        (
            "import os; os._exit(0)",
            ExitCode.USER_ERROR,
            Cause.USER_ERROR,
            "ended with exit status 0 before its entrypoint returned (os._exit, or exit in a library)",
        ),
        (
            "import os; os.kill(os.getpid(), 9)",
            ExitCode.RANK_LOST,
            Cause.RANK_LOST,
            "killed by SIGKILL (kill -9, or the kernel for want of memory)",
        ),
        (
            "import ctypes; ctypes.string_at(0)",
            ExitCode.USER_ERROR,
            Cause.USER_ERROR,
            "Fatal Python error: Segmentation fault",
        ),
        (
            "import os; os.kill(os.getpid(), 10)",
            ExitCode.USER_ERROR,
            Cause.USER_ERROR,
            "killed by SIGUSR1 (User defined signal 1)",
        ),
        (
            "import nosuchlibrary.part",
            ExitCode.USER_ERROR,
            Cause.USER_ERROR,
            "ModuleNotFoundError: No module named 'nosuchlibrary'",
        ),
    ],
)
def test_every_end_has_its_exit_code_and_verdict(
    bench, body: str, code: int, cause: Cause, message: str
) -> None:
    bench.code(t=f"def f():\n    {body}\n")
    ended = bench.run(entrypoint="t:f")
    assert (ended.code, ended.report.exit_code) == (code, code)
    assert (ended.report.verdict.cause, ended.report.verdict.message) == (cause, message)
    assert ended.report.verdict.rank == 0
    assert ended.lines[-1] == f"rank 0: {message}"
    assert ended.part is None


@pytest.mark.parametrize("body", ["raise SystemExit", "import sys; sys.exit(0)"])
def test_a_clean_exit_is_success(bench, body: str) -> None:
    bench.code(t=f"def f():\n    {body}\n")
    assert bench.run(entrypoint="t:f").code == ExitCode.SEALED


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("nosuch.train:f", "no module 'nosuch' in the code that travels with the job (t.py)"),
        ("t.deep:f", "no module 't.deep'"),
        ("t:g", "has no function 'g'; it has f"),
        ("t:VALUE", "has no function 'VALUE'; it has f"),
        ("t:f", "parameter 'rows' is given by nothing"),
    ],
)
def test_an_entrypoint_that_does_not_fit_is_a_spec_error(bench, entrypoint: str, message: str) -> None:
    bench.code(t="VALUE = 1\ndef f(rows): ...")
    ended = bench.run(entrypoint=entrypoint, ranks=2)
    assert ended.code == ExitCode.SPEC_ERROR
    assert ended.report.verdict.cause is Cause.SPEC_ERROR
    assert message in ended.report.verdict.message


def test_a_module_that_breaks_while_imported_is_the_authors_error(bench) -> None:
    bench.code(t="import nosuch\ndef f(): ...", u="1 / 0", v="def (")
    ended = bench.run(entrypoint="t:f")
    assert ended.code == ExitCode.USER_ERROR
    assert ended.report.verdict.advice.startswith("image train has no nosuch: run `muster images copy train ")
    assert ended.report.verdict.advice.endswith(", or mend the import")
    (bench.root / "scratch").rename(bench.root / "scratch-1")
    assert bench.run(entrypoint="u:f").report.verdict.message == "ZeroDivisionError: division by zero"
    (bench.root / "scratch").rename(bench.root / "scratch-2")
    assert bench.run(entrypoint="v:f").report.verdict.message.startswith("SyntaxError: ")


def test_a_command_that_fails_is_told_by_its_traceback(bench) -> None:
    bench.code(t="import sys\ndef f():\n    raise ValueError('no rows')\nf()")
    ended = bench.run(command=("python", "t.py"))
    assert ended.code == ExitCode.USER_ERROR
    assert ended.lines[-1] == "rank 0: ValueError: no rows"
    assert ended.lines[-2] == "[rank 0] ValueError: no rows"
    assert ended.log.count("Traceback (most recent call last)") == 1  # the rank printed it
    assert ended.report.verdict.advice == ("mend the code at t.py:3 and run again; earlier stages are kept")


# As Dask's client raises what a task did, and as Ray's does: the one by its frames, the other by its words.
RAISES_WITH_FRAMES = "exec(compile('\\n\\ndef task(): raise ValueError(3)\\ntask()', PATH, 'exec'))"
RAISES_IN_WORDS = "raise ValueError('ray::task() (pid=7)\\n  File \"' + PATH + '\", line 3, in task\\n    raise x\\nValueError: 3')"


@pytest.mark.parametrize("body", [RAISES_WITH_FRAMES, RAISES_IN_WORDS])
@pytest.mark.parametrize("program", [{"entrypoint": "t:f"}, {"command": ("python", "-c", "import t; t.f()")}])
def test_what_a_worker_raised_in_its_own_copy_of_the_code_is_found_there(bench, body: str, program) -> None:
    path = bench.root / "main-1" / "attempt-1" / "code" / "tasks" / "work.py"
    bench.code(t=f"PATH = {str(path)!r}\n\n\n\n\ndef f():\n    {body}\n")
    ended = bench.run(**program)
    assert ended.report.verdict.advice.startswith("mend the code at tasks/work.py:3 and run again"), ended.log
    assert '  File "tasks/work.py", line 3, in task' in ended.report.traceback or body == RAISES_IN_WORDS


def test_the_code_of_another_attempt_is_not_this_ones(bench) -> None:
    path = bench.root / "main-1" / "attempt-2" / "code" / "work.py"
    bench.code(t=f"PATH = {str(path)!r}\ndef f():\n    {RAISES_WITH_FRAMES}\n")
    assert bench.run(entrypoint="t:f").report.verdict.advice.startswith("mend the code at t.py:3 ")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("import sys; sys.exit(3)", ExitCode.USER_ERROR, "ended with exit status 3 and no traceback"),
        (
            "import os, traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()\nos.kill(os.getpid(), 9)",
            ExitCode.RANK_LOST,
            "killed by SIGKILL (kill -9, or the kernel for want of memory)",
        ),
        (
            (
                "import sys, traceback\ntry:\n    1/0\nexcept ZeroDivisionError:\n    traceback.print_exc()\n"
                "for n in range(200): print(n)\nsys.exit(4)"
            ),
            ExitCode.USER_ERROR,
            "ended with exit status 4; its last line: 199",
        ),
    ],
)
def test_a_traceback_that_was_survived_is_not_blamed(bench, body: str, code: int, message: str) -> None:
    bench.code(t=body)
    ended = bench.run(command=("python", "t.py"))
    assert (ended.code, ended.report.verdict.message) == (code, message)


@pytest.mark.parametrize(
    ("body", "message", "advice"),
    [
        (
            (
                "import argparse\np = argparse.ArgumentParser(prog='args.py')\np.add_argument('--lr', type=float)\n"
                "p.parse_args(['--lr', '0,1'])"
            ),
            "ended with exit status 2; its last line: args.py: error: argument --lr: invalid float value: '0,1'",
            "mend the code and run again",
        ),
        (
            "import sys\nprint('error: config key lr is required', file=sys.stderr)\nsys.exit(3)",
            "ended with exit status 3; its last line: error: config key lr is required",
            "mend the code and run again",
        ),
        ("x = 1\nprint((", "SyntaxError: '(' was never closed", "mend the code at t.py:2 and"),
        ("x = 1\n  y = 2", "IndentationError: unexpected indent", "mend the code at t.py:2 and"),
        (
            "raise RuntimeError('Error downloading train.gz:\\n<urlopen error [Errno -2] Name not known>\\n\\nmore')",
            "RuntimeError: Error downloading train.gz: <urlopen error [Errno -2] Name not known>",
            "mend the code at t.py:1 and",
        ),
        (
            "raise RuntimeError('Found no NVIDIA driver on your system. Please check')",
            "RuntimeError: Found no NVIDIA driver on your system. Please check",
            "resources=Resources(gpus=1), and an image whose libraries are built for CUDA; `muster gpus`",
        ),
        (
            "raise ValueError('ProcessGroupNCCL is only supported with GPUs, no GPUs found!')",
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "the backend gloo, not nccl",
        ),
        ("n = 1\nassert n == 2", "AssertionError: assert n == 2", "mend the code at t.py:2 and"),
        (
            "raise TypeError(\"Unexpected keyword arguments: ['n_workers']\")",
            "TypeError: Unexpected keyword arguments: ['n_workers']",
            "mend the code at t.py:1 and",
        ),
        (
            "raise RuntimeError('CUDA error: invalid device ordinal')",
            "RuntimeError: CUDA error: invalid device ordinal",
            "resources=Resources(gpus=N), a GPU for each of its ranks",
        ),
        (
            "import atexit, sys\natexit.register(lambda: print('[W1123 a.cpp:1] bye', file=sys.stderr))\n1 / 0",
            "ZeroDivisionError: division by zero",
            "mend the code at t.py:3 and",
        ),
    ],
)
def test_what_a_script_said_last_is_its_verdict_s_reason(bench, body: str, message: str, advice: str) -> None:
    (bench.root / "code").mkdir()
    (bench.root / "code" / "t.py").write_text(body)
    verdict = bench.run(command=("python", "t.py")).report.verdict
    assert verdict.message == message
    assert advice in verdict.advice


def test_a_script_that_is_not_there_is_named_as_the_author_wrote_it(bench) -> None:
    bench.code(t="")
    verdict = bench.run(command=("python", "trian.py")).report.verdict
    assert verdict.message.startswith("ended with exit status 2; its last line: ")
    assert verdict.message.endswith("can't open file 'trian.py': [Errno 2] No such file or directory")


@pytest.mark.parametrize(
    ("body", "message", "advice"),
    [
        ("import v", "SyntaxError: '(' was never closed (v.py, line 2)", "mend the code at v.py:2 and"),
        (
            "import sys; print('no lr', file=sys.stderr); sys.exit(3)",
            "SystemExit: 3; its last line: no lr",
            "mend the code at t.py:2 and",
        ),
    ],
)
def test_so_it_is_of_an_entrypoint(bench, body: str, message: str, advice: str) -> None:
    bench.code(t=f"def f():\n    {body}\n", v="x = 1\nprint((")
    verdict = bench.run(entrypoint="t:f").report.verdict
    assert verdict.message == message
    assert advice in verdict.advice


def test_each_rank_s_traceback_is_in_the_log_once(bench) -> None:
    (bench.root / "code").mkdir()
    (bench.root / "code" / "t.py").write_text("raise ValueError('no rows')")
    ended = bench.run(command=("python", "t.py"), ranks=2)
    assert 1 <= ended.log.count("Traceback (most recent call last)") <= 2
    assert all(line.startswith("[rank ") for line in ended.lines if "Traceback" in line)
    assert ended.lines[-1].endswith(": ValueError: no rows")


def test_a_traceback_that_was_cut_off_after_its_first_line_is_no_reason(bench) -> None:
    (bench.root / "code").mkdir()
    (bench.root / "code" / "t.py").write_text(
        "import os, sys\n"
        "print('Traceback (most recent call last):', file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = bench.run(command=("python", "t.py"))
    assert "killed by SIGKILL" in ended.report.verdict.message
    assert ended.log.count("Traceback (most recent call last)") == 1


def test_what_torchs_record_wrote_is_read(bench) -> None:
    said = {
        "message": {
            "message": "ValueError: from record",
            "extraInfo": {
                "py_callstack": 'Traceback\n  File "/x/t.py", line 7, in f\nValueError',
                "timestamp": "1",
            },
        }
    }
    bench.code(
        t=f"import json, os, sys\njson.dump({said!r}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))\nsys.exit(1)"
    )
    ended = bench.run(command=("python", "t.py"), launcher="torchrun")
    assert ended.report.verdict.message == "ValueError: from record"
    assert ended.report.traceback[1] == '  File "/x/t.py", line 7, in f'
    assert "at /x/t.py:7" in ended.report.verdict.advice


def test_a_refused_command_starts_nothing(bench) -> None:
    ended = bench.run(command=("python", "{params.nope}"))
    assert ended.code == ExitCode.SPEC_ERROR
    assert ended.lines == ["command word '{params.nope}': the job has no param 'nope'; its params are: none"]


def test_an_attempt_reads_nothing_that_the_one_before_left(bench) -> None:
    bench.code(
        t="def f():\n    import os\n    if os.environ['MUSTER_ATTEMPT'] == '1':\n        raise ValueError\n    os.kill(os.getpid(), 9)"
    )
    assert bench.run(entrypoint="t:f").code == ExitCode.USER_ERROR
    assert bench.run(entrypoint="t:f", attempt=2).code == ExitCode.RANK_LOST


def test_secrets_are_in_the_environment_and_nowhere_else(bench) -> None:
    bench.environment["TOKEN"] = "hunter2"
    bench.code(t="import os\ndef f():\n    assert os.environ['TOKEN']\n    raise ValueError('x')")
    ended = bench.run(entrypoint="t:f", ranks=2)
    assert "hunter2" not in ended.log
    written = [p for p in bench.root.rglob("*") if p.is_file() and b"hunter2" in p.read_bytes()]
    assert written == []


@pytest.mark.parametrize("arguments", [[], ["/nowhere.json"], [__file__]])
def test_a_worker_that_cannot_read_what_to_do_says_so(worker: Path, arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, str(worker), *arguments], capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.SPEC_ERROR
    assert "usage: python WORKER REPLICA.json" in ended.stdout
    assert ended.stderr == ""


def test_a_full_disk_when_it_seals_is_said_and_reported(bench) -> None:
    bench.code(t="def f(): ...")
    replica = bench.replica(entrypoint="t:f")
    (bench.root / "sealed").rmdir()
    (bench.root / "sealed").symlink_to("/dev/full")  # a folder that takes nothing
    ended = bench.wait(bench.start(replica), replica)
    assert ended.code == ExitCode.SEAL_FAILED
    assert loads(Report, Path(replica.report).read_text()).verdict.cause is Cause.COMMIT_FAILED
    assert ended.lines[-1].startswith("cannot seal what was staged: ")


def test_a_worker_whose_starter_is_gone_by_then_runs_nothing(bench) -> None:
    bench.code(t="def f(): print('ran')")
    bench.environment["MUSTER_PARENT_PID"] = str(os.getpid())
    assert bench.run(entrypoint="t:f").code == ExitCode.SEALED
    bench.environment["MUSTER_PARENT_PID"] = "1"
    ended = bench.run(entrypoint="t:f", attempt=2)
    assert (ended.code, ended.log) == (137, "")


def test_params_reach_the_function_as_json_has_them(bench) -> None:
    given = {"a": {"deep": [1, 2.5, None]}, "b": "é\n", "c": False}
    bench.code(t="import json\ndef f(**given): print(json.dumps(given))")
    ended = bench.run(entrypoint="t:f", params=given)
    assert json.loads(ended.lines[0].removeprefix("[rank 0] ")) == given


def test_types_that_a_deployment_has_to_trust_are_told_when_the_model_is_written(bench) -> None:
    bench.code(
        skops__io="def get_untrusted_types(*, file):\n    return ['own.B', 'own.A'] if open(file).read() else []\n",
        t="""
        import skops.io
        def f(good, bad):
            (good / "model.skops").write_text("")
            (bad / "model.skops").write_text("own")
            (bad / "model.pt2").write_text("")
        """,
    )
    ended = bench.run(entrypoint="t:f", outputs=("good", "bad"))
    assert ended.code == ExitCode.SEALED
    assert ended.lines == [
        "[rank 0] model.pt2 can run code when it is loaded: deploy it with trusted=['torch.export']",
        "[rank 0] model.skops holds types that may run code when they are loaded: deploy it with trusted=['own.A', 'own.B']",
    ]
