"""A training of two processes: killed at any moment it can be resumed; one that is lost or differs ends both."""

import os
import signal
import time

import pytest
from command_worker import end_of, free_port, start, start_script, start_together
from test_resume import RUN, same, save_few
from torch.distributed import TCPStore

from likewise.cli import main
from likewise.runs import Run
from likewise.training.fitting import trainer_of
from likewise.training.processes import process_group

pytestmark = [pytest.mark.process, pytest.mark.slow]

MOMENTS = [  # one after another: ranks are killed, or the first has no room for larger files, and the run is resumed
    [
        *({0: ("full", 60_000)}, {1: ("batch", 3)}, {0: ("checkpoint", 0)}, {0: ("batch", 9), 1: ("batch", 9)}),
        *({0: ("batch", 14)}, {0: ("file", "embeddings.npz")}),
    ],
    [
        *({0: ("batch", 1)}, {1: ("batch", 6)}, {0: ("checkpoint", 2)}, {1: ("batch", 13)}),
        *({0: ("file", name)} for name in ("scores.csv", "encoder.safetensors", "report.html")),
    ],
]
AFTER = [("file", name) for name in ("embeddings.npz", "report.html")]  # all have trained and encoded
ENDED = "error: expected all 2 processes to go on, got one that has ended: see what it said"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of two processes."""
    folder = tmp_path_factory.mktemp("whole")
    save_few(folder)
    assert [end_of(process) for process in start_together(["train", *RUN], folder, 2)] == [0, 0]
    return Run.open(next((folder / "runs").iterdir()))


def _told(folder, rank):
    """Return the last line of what a rank said, which is the only one that may speak of an error."""
    lines = (folder / f"{rank}.err").read_text().splitlines()
    assert not any("Traceback" in line for line in lines)
    return lines[-1] if lines else ""


def _begun(folder, processes):
    while not list(folder.glob("runs/*/checkpoint.ckpt")):
        time.sleep(0.05)
        assert all(process.is_alive() for process in processes)


@pytest.mark.parametrize("moments", MOMENTS, ids=["without room, then killed", "killed"])
def test_a_run_whose_processes_were_cut_ends_as_if_they_had_not_been(moments, whole, tmp_path):
    """The other process ends by itself, and says that it can be resumed; files are the same, bit for bit."""
    save_few(tmp_path)
    words = RUN
    for kills in moments:
        processes = start_together(["train", *words], tmp_path, 2, kills, said=True)
        for rank, status in enumerate(end_of(process) for process in processes):
            full, done = kills.get(rank, " ")[0] == "full", rank == 1 and kills.get(0) in AFTER
            assert status == (-signal.SIGKILL if rank in kills and not full else 0 if done else 2), (kills, rank)
            if full:
                assert "expected room to write files" in _told(tmp_path, rank)
            elif status == 2:
                assert _told(tmp_path, rank).startswith(ENDED)
        (left,) = (tmp_path / "runs").iterdir()
        assert left.suffix == ".partial"
        words = ["--resume", str(left)]
    assert [end_of(process) for process in start_together(["train", *words], tmp_path, 2)] == [0, 0]
    (resumed,) = (tmp_path / "runs").iterdir()
    same(Run.open(resumed), whole)


def test_sigterm_to_one_process_saves_and_ends_both_with_143(tmp_path):
    save_few(tmp_path)
    processes = start_together(["train", *RUN, "--trainer.max_epochs", "100000"], tmp_path, 2, said=True)
    _begun(tmp_path, processes)
    os.kill(processes[0].pid, signal.SIGTERM)
    assert [end_of(process) for process in processes] == [143, 143]
    assert "resume it with likewise train --resume" in _told(tmp_path, 0)


def test_a_process_that_hangs_ends_the_other(tmp_path):
    save_few(tmp_path)
    words = ["train", *RUN, "--trainer.max_epochs", "100000", "--timeout_minutes", "0.1"]
    processes = start_together(words, tmp_path, 2, said=True)
    _begun(tmp_path, processes)
    os.kill(processes[1].pid, signal.SIGSTOP)
    try:
        assert end_of(processes[0]) == 2
    finally:
        processes[1].kill()
    told = _told(tmp_path, 0)
    assert "within 0.1 minutes, got no answer from one: see what it does, or raise --timeout_minutes" in told
    assert "resume it with" in told


def test_processes_that_were_started_differently_are_told_the_differences(tmp_path):
    save_few(tmp_path)
    others = ["--loss.temperature", "0.2", "--trainer.max_epochs", "4"]
    commands = [["train", *RUN, "--loss.temperature", "0.1"], ["train", *RUN, *others]]
    processes = start_together(commands, tmp_path, 2, said=True)
    assert [end_of(process) for process in processes] == [2, 2]
    for rank in range(2):
        assert _told(tmp_path, rank) == (
            "error: expected the same options on all ranks, got loss.init_args.temperature 0.1 on rank 0 and 0.2 on "
            "rank 1; trainer.max_epochs 3 on rank 0 and 4 on rank 1: "
            "start all with the same command and the same versions"
        )
    assert not (tmp_path / "runs").exists()


def test_processes_that_count_differently_or_were_never_started_are_not_waited_for_for_ever(tmp_path):
    """Two that take each other for one of three, and either of two alone; all at once, since each waits for minutes."""
    words, started, missing = ["train", *RUN, "--timeout_minutes"], {}, "within 0.02 minutes, got no answer from one: "
    for counts in ((2, 3), (3, 2)):
        (folder := tmp_path / str(counts[0])).mkdir()
        save_few(folder)
        each = [{"WORLD_SIZE": str(count)} for count in counts]
        started[folder] = start_together([*words, "0.1"], folder, 2, said=True, each=each)
    for rank in range(2):
        (folder := tmp_path / f"rank {rank}").mkdir()
        save_few(folder)
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
        said = folder / "out", folder / "0.err"
        started[folder] = [start([*words, "0.02"], folder, said=said, MASTER_ADDR="127.0.0.1", **place)]
    for folder, processes in started.items():
        for rank, process in enumerate(processes):
            assert end_of(process) == 2
            assert _told(folder, rank).startswith("error: expected ")
            if len(processes) == 1:
                assert f"{missing}see what it does, or raise --timeout_minutes" in _told(folder, rank)


def test_what_one_process_does_is_refused_to_several(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for verb in ("evaluate", "sweep", "compare", "export"):
        assert main([verb]) == 2
        assert f"error: expected one process for likewise {verb}, got 2: " in capsys.readouterr().err


def test_variables_that_do_not_fit_are_refused(monkeypatch):
    """A rank that there is not, one that the machine has not, and more devices than processes were launched."""
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "5"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="expected RANK below WORLD_SIZE, 2, got 5"), process_group({}, minutes=1):
        pass
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "1")
        told = r"got 1 and LOCAL_RANK 1: let torchrun or srun set these variables"
        with pytest.raises(ValueError, match=told), process_group({}, minutes=1):
            pass
    with pytest.raises(ValueError, match=r"expected trainer.devices of 2, as 2 processes were launched, got 3"):
        trainer_of({"accelerator": "cpu", "devices": 3}, [], None)


def test_processes_that_read_different_data_are_told_so(tmp_path):
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        save_few(tmp_path / str(rank), count=160 - rank)
    commands = [["train", *RUN, "--data.path", "few.npz"] for rank in range(2)]
    processes = start_together(commands, tmp_path, 2, said=True, folders=[tmp_path / "0", tmp_path / "1"])
    assert [end_of(process) for process in processes] == [2, 2]
    for rank in range(2):
        assert "expected the same data and parts on all ranks, got parts" in _told(tmp_path, rank)


TWICE = """
import os, sys
from likewise.training.processes import process_group
with process_group({"loss": "SupConLoss"}, 3):
    pass
try:
    with process_group({"loss": os.environ["RANK"]}, 3):
        pass
except ValueError as error:
    open(sys.argv[1], "w").write(str(error))
"""


def test_a_second_training_takes_nothing_for_its_own_that_was_told_in_the_first(tmp_path):
    """The store of torchrun outlives a training."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    launch = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    launch |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = []
    for rank in ("0", "1"):
        place = launch | {"RANK": rank, "LOCAL_RANK": rank}
        started.append(start_script(script, tmp_path / f"{rank}.told", errors=tmp_path / f"{rank}.err", **place))
    assert [end_of(process) for process in started] == [0, 0]
    for rank in range(2):
        assert "got loss 0 on rank 0 and 1 on rank 1" in (tmp_path / f"{rank}.told").read_text()


def test_slurm_alone_starts_several_and_a_run_that_goes_on_with_another_number_says_so(tmp_path):
    """The variables that srun sets, and none of torchrun's; one of the two is lost, and the rest is of one process."""
    save_few(tmp_path)
    common = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "7"}
    common |= {"SLURM_NODELIST": "localhost", "SLURM_JOB_NAME": "train", "SLURM_NODEID": "0"}
    each = [common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    torchruns = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"))
    torchruns |= {"MASTER_ADDR": None}
    variables = [torchruns | of for of in each]
    processes = start_together(["train", *RUN], tmp_path, 2, {1: ("batch", 9)}, said=True, each=variables)
    assert [end_of(process) for process in processes] == [2, -signal.SIGKILL]
    (left,) = (tmp_path / "runs").iterdir()
    assert end_of(start(["train", "--resume", str(left)], tmp_path, said=(tmp_path / "out", tmp_path / "err"))) == 0
    begun, now = Run.open(left).metadata["device"].split("; then ")
    assert begun.endswith("2 processes")
    assert f"begun with {begun}, and now with {now}: results differ" in (tmp_path / "err").read_text()
