"""The use of a run's encoder: the first line of each verb, with the run's own path, to be copied."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from likewise.report.elements import element, sentence
from likewise.report.formatting import short_name
from likewise.report.run_view import RunView
from likewise.report.sections.section import Content, Section
from likewise.runs import Run

FILES = {  # by the number of dimensions of an input, 0 for texts: a file of inputs, one to query, and an argument
    0: ("texts.csv", "queries.csv", '"a text"'),
    1: ("vectors.npz", "queries.npz", "vectors"),
    3: ("photos/", "photo.jpg", '"photo.jpg"'),
}


class UseSection(Section):
    """The first lines of embed, search, predict and export, and of Python."""

    def content(self, views: Sequence[RunView]) -> Content | None:
        commands, code = first_lines(views[0].run)
        if not commands:
            return None
        pairs = [*commands.items(), ("In Python", "\n".join(code))]
        return Content("Use this encoder", sentence("use"), element("commands", pairs))


def first_lines(run: Run) -> tuple[dict[str, str], list[str]]:
    """Return a command for each use of a run's encoder, and the lines of Python; none of a run without one."""
    facts = run.metadata
    spec = facts.get("parts", {}).get("encoder")
    if not run.weights.is_file() or not spec:
        return {}, []
    whole = run.folder.with_name(run.name).absolute()
    path = str(whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole)
    shape, second = _shape(spec), facts.get("second")
    folder, (inputs, query, argument) = shlex.quote(path), FILES.get(len(shape), FILES[1])
    query_argument = argument
    if second is not None:
        _, query, query_argument = FILES.get(len(_shape(second["encoder"] or spec)), FILES[1])
    side = ("", "") if second is None else (" --side second", ", side='second'")
    output = f"{Path(inputs).stem}.parquet"
    commands = {
        "Features of all, with their ids": f"likewise embed {folder} {inputs} --output {output}",
        "The nearest": f"likewise search {folder} {query}{side[0]} --among {output} --k 5",
        "Classes or labels": f"likewise predict {folder} {inputs} --output {Path(inputs).stem}.csv",
        "For elsewhere": f"likewise export {folder} --format {'onnx' if shape else 'safetensors'}",
    }
    code = ["import likewise as lw", "", f"model = lw.load({path!r})", f"features = model.encode({argument})"]
    code += [
        f"nearest = model.search({query_argument}, {output!r}{side[1]}, k=5)",
        f"predictions = model.predict({argument})",
    ]
    if not (facts.get("labels") or {}).get("kind"):
        del commands["Classes or labels"], code[-1]
    return commands, code


def _shape(spec: Mapping[str, Any]) -> Sequence[int]:
    arguments = spec.get("init_args", {})
    return _shape(arguments["encoder"]) if short_name(spec) == "Projected" else arguments.get("input_shape", (1,))
