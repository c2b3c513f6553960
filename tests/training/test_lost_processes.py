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
from likewise.training import processes as processes_module
from likewise.training.fitting import trainer_of
from likewise.training.launch import refused_together
from likewise.training.processes import joined

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
    "an embedding width": (["--head.out_dim", "7"], "head.init_args.out_dim 64 on rank 0 and 7 on rank 1"),
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


def test_processes_that_count_differently_are_told_so(tmp_path):
    save_few(tmp_path)
    for first, second in ((2, 3), (3, 2)):
        given = {"WORLD_SIZE": str(first)}, {"WORLD_SIZE": str(second)}
        processes = start_together(["train", *RUN], tmp_path, 2, said=True, each=given)
        assert [end_of(process) for process in processes] == [2, 2]
        for rank in range(2):
            assert f"got processes {first} on rank 0 and {second} on rank 1" in _told(tmp_path, rank)


@pytest.mark.parametrize(
    ("rank", "expected"), [(0, "got no answer from rank 1"), (1, "expected the first process at 127.0.0.1:")]
)
def test_a_process_that_was_never_started_is_missed(rank, expected, tmp_path):
    save_few(tmp_path)
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
    said = tmp_path / "out", tmp_path / "err"
    words = ["train", *RUN, "--timeout_minutes", "0.02"]
    assert end_of(start(words, tmp_path, said=said, MASTER_ADDR="127.0.0.1", **place)) == 2
    (told,) = (tmp_path / "err").read_text().splitlines()
    assert expected in told
    assert told.endswith("within 0.02 minutes: start it, or raise --timeout_minutes")


def test_what_one_process_does_is_refused_to_several(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for verb in ("evaluate", "sweep", "compare", "export"):
        assert main([verb]) == 2
        expected = f"error: expected one process for likewise {verb}, got 2: start it without torchrun or srun\n"
        assert capsys.readouterr().err == expected


def test_variables_that_do_not_fit_are_refused(monkeypatch):
    """A rank that there is not, and more devices than processes were launched."""
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "5"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="expected RANK below WORLD_SIZE, 2, got 5"), joined({}, minutes=1):
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
    device = Run.open(left).facts["device"]
    assert "2 processes; then " in device
    assert (
        f"begun with {device.replace('; then ', ', and now with ')}: results differ" in (tmp_path / "err").read_text()
    )


def test_processes_that_read_different_data_are_told_so(tmp_path):
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        save_few(tmp_path / str(rank), count=160 - rank)
    commands = [["train", *RUN, "--data.path", "few.npz"] for rank in range(2)]
    processes = start_together(commands, tmp_path, 2, said=True, folders=[tmp_path / "0", tmp_path / "1"])
    assert [end_of(process) for process in processes] == [2, 2]
    for rank in range(2):
        assert "expected the same data and parts on all ranks, got parts" in _told(tmp_path, rank)


LACKING = {  # what one process does not find: the words, and what it says
    "a path": (RUN, "expected a file or folder for --data.path, got few.npz"),
    "a guess": (["few.npz", *RUN[4:]], "few.npz"),
    "a configuration": (["--config", "few.yaml"], "expected a file of options for --config, got few.yaml"),
    "a run": (["--resume", "few.partial"], "expected the folder of a run for --resume, got few.partial"),
}


@pytest.mark.parametrize(("case", "lacking"), list(zip(LACKING, [1, 0, 1, 0], strict=True)))
def test_a_mistake_on_one_process_is_an_error_on_both(case, lacking, tmp_path):
    words, expected = LACKING[case]
    folders = [tmp_path / str(rank) for rank in range(2)]
    for rank, folder in enumerate(folders):
        (folder / "few.partial").mkdir(parents=True)
        if rank != lacking:
            save_few(folder)
            (folder / "few.yaml").write_text("data: {class_path: Arrays, init_args: {path: few.npz}}\n")
            (folder / "few.partial" / "config.yaml").write_text((folder / "few.yaml").read_text())
            (folder / "few.partial" / "run.json").write_text("{}")
    processes = start_together(["train", *words], tmp_path, 2, said=True, folders=folders)
    assert [end_of(process) for process in processes] == [2, 2]
    assert f"rank {lacking} was refused, see its message" in _told(tmp_path, 1 - lacking)
    assert expected in _told(tmp_path, lacking)


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "2", "RANK": "0"}, {"WORLD_SIZE": "2", "RANK": "1"}])
def test_a_mistake_is_said_although_no_other_process_answers(variables, monkeypatch):
    """Launcher's variables that were left behind, or a launch that failed elsewhere, hide no message."""
    for name, value in {"MASTER_PORT": str(free_port()), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(processes_module, "MINUTES", 0.01)
    monkeypatch.setattr(processes_module, "SECONDS", 0.01)
    said = pytest.warns(UserWarning, match=r"^no such file; the other processes")
    with said, pytest.raises(ValueError, match=r"^no such file$"), refused_together():
        raise ValueError("no such file")


TWICE = """
import os, sys, time
from likewise.training.launch import refused_together
from likewise.training.processes import joined
with joined({"loss": "SupConLoss"}, 3):
    pass
try:
    if os.environ["RANK"] == "0":
        with joined({"loss": "SupConLoss"}, 3):
            pass
    else:
        time.sleep(1)  # the first process comes to the second training while this one is not there
        with refused_together():
            raise ValueError("no such file")
except ValueError as error:
    open(sys.argv[1], "w").write(str(error))
"""


def test_a_second_training_takes_nothing_for_its_own_that_was_told_in_the_first(tmp_path):
    """The store of torchrun outlives a training: a process must not read in it that the others are well."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    script = tmp_path / "twice.py"
    script.write_text(TWICE)
    launch = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    launch |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = [
        start_script(
            script, tmp_path / f"{rank}.told", errors=tmp_path / f"{rank}.err", RANK=rank, LOCAL_RANK=rank, **launch
        )
        for rank in ("0", "1")
    ]
    assert [end_of(process) for process in started] == [0, 0]
    assert "rank 1 was refused" in (tmp_path / "0.told").read_text()
    assert (tmp_path / "1.told").read_text() == "no such file"


def test_a_mistake_is_said_where_a_variable_of_the_launch_is_missing(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(ValueError, match=r"^no such file$"), refused_together():
        raise ValueError("no such file")


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
    assert "2 processes" in Run.open(run).facts["device"]
