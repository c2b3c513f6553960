"""Where the time of a SupCon step goes, eager and in a CUDA graph, and the memory of a million rows."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.losses import ENTRIES, ours
from benchmarks.measuring.case import Batch, Case, Dtype, Sampler, run
from benchmarks.reports import Report, begun, in_words, leave_if_poisoned

ROWS, MILLION, STEPS = (4096, 16384), 1048576, 3
DTYPE: Dtype = "bfloat16"


def step_of(rows: int, device: str) -> tuple[Callable[..., Any], Batch]:
    """Return SupCon with kernels, and a batch for it."""
    case = Case(rows, 128, DTYPE, device)
    return ours("SupConLoss", "triton").make(case), ENTRIES["SupConLoss"].batch(Sampler(case))


def eager(rows: int, report: Report) -> Callable[[], None]:
    """Return a function that runs a step."""
    step, batch = step_of(rows, report.device)
    run(step, batch)
    return lambda: run(step, batch)


def in_graph(rows: int, report: Report) -> Callable[[], Any]:
    """Return a function that replays a step."""
    turn, side = eager(rows, report), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        turn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        turn()
    return graph.replay


def profiled(name: str, turn: Callable[[], Any], report: Report) -> None:
    """Profile some steps: a table as text, its lines in the report, and a trace for a browser."""
    on_gpu = not report.dry_run
    start = time.perf_counter()
    for _ in range(STEPS):
        turn()
    host = (time.perf_counter() - start) / STEPS  # of a GPU's step the time to launch it, as nothing waits here
    if on_gpu:
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        for _ in range(STEPS):
            turn()
        if on_gpu:
            torch.cuda.synchronize()
    averages = found.key_averages()
    of, path = "self_device_time_total" if on_gpu else "self_cpu_time_total", report.path.with_name(name)
    path.with_suffix(".txt").write_text(averages.table(sort_by=of, row_limit=30), encoding="utf-8")
    found.export_chrome_trace(str(path.with_suffix(".trace.json.gz")))
    lines = sorted(averages, key=lambda each: -getattr(each, of, 0))[:30]
    fields = "count", "self_cpu_time_total", "self_device_time_total"
    table = [{"name": each.key} | {key: getattr(each, key, None) for key in fields} for each in lines]
    report.add(profile=name, host_ms=1e3 * host, steps=STEPS, microseconds_of_all_steps=table)


def memory(report: Report) -> None:
    """Report the peak of a step of a million rows, and write a snapshot of every allocation in it."""
    if report.dry_run:
        report.add(memory=96, skipped="the CPU has no such statistics")
        return
    step, batch = step_of(MILLION, "cuda")
    run(step, batch)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    record: Any = vars(torch.cuda.memory)  # what torch documents under names of its own
    record["_record_memory_history"](max_entries=10000)
    run(step, batch)
    torch.cuda.synchronize()
    record["_dump_snapshot"](str(report.path.with_name("memory.pickle")))
    record["_record_memory_history"](enabled=None)
    peak, inputs = torch.cuda.max_memory_allocated(), sum(v.nbytes for v in batch)
    report.add(memory=MILLION, peak_bytes=peak, beyond_bytes=peak - before, inputs_bytes=inputs)


def main(report: Report) -> None:
    """Profile both sizes, then the memory; one failure leaves the rest."""
    tasks: dict[str, Callable[[], None]] = {}
    for rows in (64,) if report.dry_run else ROWS:
        tasks[f"{rows}-eager"] = lambda rows=rows: profiled(f"{rows}-eager", eager(rows, report), report)
        tasks[f"{rows}-graph"] = lambda rows=rows: profiled(f"{rows}-graph", in_graph(rows, report), report)
    tasks["memory"] = lambda: memory(report)
    for name, task in tasks.items():
        if report.dry_run and name.endswith("graph"):
            report.add(profile=name, skipped="a CPU has no CUDA graphs")
            continue
        try:
            task()
        except Exception as error:  # noqa: BLE001 - the others go on
            report.add(profile=name, failed=in_words(error))
        leave_if_poisoned()
    done = sum("failed" not in each and "skipped" not in each for each in report.results)
    report.say(summary=f"{done} of {len(tasks)} profiles: {Path(report.path).parent.name}/*.txt, *.trace.json.gz")


if __name__ == "__main__":
    main(begun(__doc__ or "")[1])
