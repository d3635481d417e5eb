# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""A first run and its report, as a marimo notebook: `marimo edit examples/notebooks/first_run.py`."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="A first run")


@app.cell
def _():
    import marimo as mo
    import numpy as np
    from small_model import small_model

    import frustum

    return frustum, mo, np, small_model


@app.cell
def _(mo):
    mo.md(
        """
        # A first run

        A small network is compiled for a machine, run on the emulated chip with random numbers, and compared with
        onnxruntime. Choose another machine, and everything below is made anew.
        """
    )


@app.cell
def _(frustum, mo):
    machine = mo.ui.dropdown(list(frustum.targets()), value="edge", label="machine")
    machine  # noqa: B018  # shown
    return (machine,)


@app.cell
def _(frustum, machine, np, small_model):
    compiled = frustum.compile(small_model(), target=machine.value)
    image = np.random.default_rng(1).random((1, 3, 32, 32), dtype=np.float32)
    result = frustum.run(compiled, {"image": image}, check=True)
    return compiled, result


@app.cell
def _(mo, result):
    mo.vstack([mo.md("## The report as one screen"), mo.plain_text(result.report.text())])


@app.cell
def _(compiled, mo, result):
    _cycles = {unit["name"]: sum(wait["cycles"] for wait in unit["waits"]) for unit in result.report["units"]}
    _rows = [
        {"unit": unit.name, "layers": ", ".join(unit.layers), "cycles": _cycles[unit.name]} for unit in compiled.units
    ]
    mo.vstack([mo.md("## Which layers share a unit, and what a unit takes"), mo.ui.table(_rows, selection=None)])


@app.cell
def _(mo, result):
    _dram, _least = result.report["dram"], result.report["dram"]["layer_by_layer_bytes"]
    _bars = {"this plan": _dram["total_bytes"], "layer by layer": _least, "least of any plan": _dram["bound_bytes"]}
    _rows = "".join(
        f"<tr><td>{name}</td><td style='text-align:right;padding:0 1em'>{size:,}</td>"
        f"<td style='width:60%'><meter style='width:100%' aria-label='{name}' max='{max(_bars.values())}'"
        f" value='{size}'></meter></td></tr>"
        for name, size in _bars.items()
    )
    mo.vstack([mo.md("## DRAM bytes"), mo.Html(f"<table style='width:100%'>{_rows}</table>")])


@app.cell
def _(mo, result):
    mo.vstack(
        [
            mo.md("## The page of the run\n\nThe same as `frustum run --html` writes."),
            mo.iframe(result.report.html(), height="600px"),
        ]
    )


if __name__ == "__main__":
    app.run()
