"""What is begun in the same second as something of its kind has a place of its own."""

from datetime import datetime

import pytest

from benchmarks import command
from likewise.workflows import plan

pytestmark = pytest.mark.slow


class Stopped(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 27, 10, 15, tzinfo=tz)


@pytest.mark.parametrize("written_first", [False, True])
def test_sweeps_begun_in_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch, written_first):
    monkeypatch.setattr(plan, "datetime", Stopped)
    sweep = plan.plan_sweep([], [], [0])
    if written_first:
        folders = [plan.write(sweep, plan.folder_of(sweep, None, str(tmp_path))) for _ in range(3)]
    else:  # all have chosen a name before one of them writes
        folders = [plan.write(sweep, of) for of in [plan.folder_of(sweep, None, str(tmp_path)) for _ in range(3)]]
    assert [folder.name for folder in folders] == [f"2026-11-27-101500{more}" for more in ("", "-2", "-3")]
    assert all(plan.read(folder) == sweep for folder in folders)
    assert plan.folder_of(sweep, folders[0]) == folders[0]  # which goes on


def test_measurements_begun_in_the_same_second_have_files_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "datetime", Stopped)
    names = [command._path(tmp_path, "AMD EPYC").name for _ in range(2)]  # noqa: SLF001 - the measurement behind it takes minutes
    assert names == ["2026-11-27-101500-AMD-EPYC.json", "2026-11-27-101500-AMD-EPYC-2.json"]
