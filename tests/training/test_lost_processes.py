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

MOMENTS = [  # one after another: a rank, or both, is killed, the run is resumed, and killed again
    [{1: ("batch", 1)}, {0: ("batch", 3)}, {0: ("checkpoint", 0)}, {0: ("batch", 9), 1: ("batch", 9)}],
    [{0: ("checkpoint", 2)}, {1: ("batch", 6)}, {0: ("file", "scores.csv")}, {0: ("file", "embeddings.npz")}],
    [{1: ("batch", 13)}, {0: ("batch", 14)}, {0: ("file", "encoder.safetensors")}, {0: ("file", "report.html")}],
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


@pytest.mark.parametrize("moments", MOMENTS, ids=str)
def test_a_run_whose_processes_were_killed_ends_as_if_they_had_not_been(moments, whole, tmp_path):
    """The other process ends by itself, and says that it can be resumed; files are the same, bit for bit."""
    save_few(tmp_path)
    words = RUN
    for kills in moments:
        processes = start_together(["train", *words], tmp_path, 2, kills, said=True)
        for rank, status in enumerate(end_of(process) for process in processes):
            done = rank == 1 and kills.get(0) in AFTER
            assert status == (-signal.SIGKILL if rank in kills else 0 if done else 2), (kills, rank)
            if status == 2:
                assert _told(tmp_path, rank).startswith(ENDED)
        (left,) = (tmp_path / "runs").iterdir()
        assert left.suffix == ".partial"
        words = ["--resume", str(left)]
    assert [end_of(process) for process in start_together(["train", *words], tmp_path, 2)] == [0, 0]
    (resumed,) = (tmp_path / "runs").iterdir()
    same(Run.open(resumed), whole)


def test_a_full_disk_ends_both_and_the_run_can_be_resumed(whole, tmp_path):
    save_few(tmp_path)
    processes = start_together(["train", *RUN], tmp_path, 2, {0: ("full", 60_000)}, said=True)
    assert [end_of(process) for process in processes] == [2, 2]
    assert "expected room to write files" in _told(tmp_path, 0)
    assert _told(tmp_path, 1).startswith(ENDED)
    (left,) = (tmp_path / "runs").iterdir()
    assert [end_of(process) for process in start_together(["train", "--resume", str(left)], tmp_path, 2)] == [0, 0]
    same(Run.open(left), whole)


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_to_one_process_saves_and_ends_both_with_143(rank, tmp_path):
    save_few(tmp_path)
    processes = start_together(["train", *RUN, "--trainer.max_epochs", "100000"], tmp_path, 2, said=True)
    _begun(tmp_path, processes)
    os.kill(processes[rank].pid, signal.SIGTERM)
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


DIFFERENT = {
    "a temperature": (["--loss.temperature", "0.2"], "loss.init_args.temperature 0.1 on rank 0 and 0.2 on rank 1"),
    "a number of epochs": (["--trainer.max_epochs", "4"], "trainer.max_epochs 3 on rank 0 and 4 on rank 1"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_processes_that_were_started_differently_are_told_the_difference(case, tmp_path):
    save_few(tmp_path)
    given, expected = DIFFERENT[case]
    words = ["train", *RUN, "--head", "ProjectionHead", "--loss.temperature", "0.1"]
    processes = start_together([words, [*words, *given]], tmp_path, 2, said=True)
    assert [end_of(process) for process in processes] == [2, 2]
    for rank in range(2):
        assert _told(tmp_path, rank) == (
            f"error: expected the same options on all ranks, got {expected}: "
            "start all with the same command and the same versions"
        )
    assert not (tmp_path / "runs").exists()


def test_processes_that_count_differently_do_not_wait_for_ever(tmp_path):
    save_few(tmp_path)
    for first, second in ((2, 3), (3, 2)):
        given = {"WORLD_SIZE": str(first)}, {"WORLD_SIZE": str(second)}
        processes = start_together(["train", *RUN, "--timeout_minutes", "0.1"], tmp_path, 2, said=True, each=given)
        assert [end_of(process) for process in processes] == [2, 2]
        for rank in range(2):
            assert _told(tmp_path, rank).startswith("error: expected ")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_was_never_started_is_missed(rank, tmp_path):
    save_few(tmp_path)
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
    said = tmp_path / "out", tmp_path / "err"
    words = ["train", *RUN, "--timeout_minutes", "0.02"]
    assert end_of(start(words, tmp_path, said=said, MASTER_ADDR="127.0.0.1", **place)) == 2
    told = (tmp_path / "err").read_text().splitlines()[-1]
    assert "within 0.02 minutes, got no answer from one: see what it does, or raise --timeout_minutes" in told


def test_what_one_process_does_is_refused_to_several(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for verb in ("evaluate", "sweep", "compare", "export"):
        assert main([verb]) == 2
        assert f"error: expected one process for likewise {verb}, got 2: " in capsys.readouterr().err


def test_variables_that_do_not_fit_are_refused(monkeypatch):
    """A rank that there is not, and more devices than processes were launched."""
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "5"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="expected RANK below WORLD_SIZE, 2, got 5"), process_group({}, minutes=1):
        pass
    with pytest.raises(ValueError, match=r"expected trainer.devices of 2, as 2 processes were launched, got 3"):
        trainer_of({"accelerator": "cpu", "devices": 3}, [], None)


def test_a_place_that_the_machine_has_not_is_refused(tmp_path):
    save_few(tmp_path)
    words = ["train", *RUN, "--timeout_minutes", "0.1"]
    processes = start_together(words, tmp_path, 2, said=True, each=[{"LOCAL_WORLD_SIZE": "1"}] * 2)
    assert [end_of(process) for process in processes] == [2, 2]
    assert "got 1 and LOCAL_RANK 1: let torchrun or srun set these variables" in _told(tmp_path, 1)


def test_a_run_that_goes_on_with_another_number_of_processes_says_so(tmp_path):
    save_few(tmp_path)
    processes = start_together(["train", *RUN], tmp_path, 2, {1: ("batch", 9)}, said=True)
    assert [end_of(process) for process in processes] == [2, -signal.SIGKILL]
    (left,) = (tmp_path / "runs").iterdir()
    assert end_of(start(["train", "--resume", str(left)], tmp_path, said=(tmp_path / "out", tmp_path / "err"))) == 0
    begun, now = Run.open(left).metadata["device"].split("; then ")
    assert begun.endswith("2 processes")
    assert f"begun with {begun}, and now with {now}: results differ" in (tmp_path / "err").read_text()


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


def test_slurm_alone_starts_several(tmp_path):
    """The variables that srun sets, and none of torchrun's."""
    save_few(tmp_path)
    common = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": "7"}
    common |= {"SLURM_NODELIST": "localhost", "SLURM_JOB_NAME": "train", "SLURM_NODEID": "0"}
    each = [common | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    torchruns = dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"))
    torchruns |= {"MASTER_ADDR": None}
    words = ["train", *RUN, "--trainer.max_epochs", "1"]
    processes = start_together(words, tmp_path, 2, each=[torchruns | of for of in each])
    assert [end_of(process) for process in processes] == [0, 0]
    (run,) = (tmp_path / "runs").iterdir()
    assert "2 processes" in Run.open(run).metadata["device"]
