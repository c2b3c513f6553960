"""Meters and GPUs that measure nothing and report what a test tells them, and bars that count."""

import torch


class Told:
    """A meter that measures nothing: seconds and bytes are told by a function of contender and rows."""

    device, inputs = "cpu", 0

    def __init__(self, tell):
        self.tell, self.peaks = tell, []

    def peak(self, contender, case):
        self.peaks.append((str(contender), case.rows))
        return self.tell(contender, case.rows)

    def turns(self, contender, case, expected):  # noqa: ARG002 - as a meter has it
        return lambda: expected


class Gpu:
    """Stands in for `torch.cuda`: its clock runs a millisecond a step or replay, its memory is what it is told."""

    L2_cache_size = 3000

    def __init__(self):
        self.replays = 0

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, _):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def elapsed_time(self, _):
        return 1.0

    def replay(self):
        self.replays += 1


def pretend_gpu(monkeypatch):
    """Let `Gpu` stand in for `torch.cuda`, and return it."""
    found = Gpu()
    for name in ("CUDAGraph", "Event", "Stream", "current_device", "current_stream", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, found)
    for name in ("get_device_properties", "graph", "reset_peak_memory_stats", "stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, found)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 500)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 1700)
    return found


class Bars:
    """Draws no bars, and counts the steps of each by what is being done."""

    def __init__(self):
        self.steps = {}

    def __call__(self, walked, doing):
        self.steps[doing] = self.steps.get(doing, 0)
        for one in walked:
            self.steps[doing] += 1
            yield one
