# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""A plan, why it is so, and what other cuts cost, as a marimo notebook: `marimo edit examples/notebooks/plan.py`."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="A plan and its cuts")


@app.cell
def _():
    import marimo as mo
    from small_model import small_model

    import frustum

    return frustum, mo, small_model


@app.cell
def _(mo):
    mo.md(
        """
        # A plan and its cuts

        A *unit* is a group of layers that runs tile by tile, so that the maps between its layers stay on chip. Where
        one unit ends and the next begins is a *cut*. Here is the plan that the compiler chose; below you choose
        another one.
        """
    )


@app.cell
def _(frustum, small_model):
    model = small_model()
    best = frustum.compile(model, target="edge")
    before = frustum.run(best, mode="timing").report
    return before, best, model


@app.cell
def _(best, mo):
    mo.ui.table(
        [{"unit": unit.name, "layers": ", ".join(unit.layers), "why it ends": unit.stopped_by} for unit in best.units],
        selection=None,
    )


@app.cell
def _(best, mo):
    _layers = [layer for unit in best.units for layer in unit.layers]
    cuts = mo.ui.multiselect(_layers[:-1], value=["conv2"], label="cut behind")
    mo.vstack([mo.md("## Other cuts"), cuts])
    return (cuts,)


@app.cell
def _(before, cuts, frustum, mo, model):
    mo.stop(not cuts.value, mo.md("Choose at least one layer."))
    _changed = frustum.compile(model, target="edge", cuts=",".join(cuts.value))
    _after = frustum.run(_changed, mode="timing").report
    mo.vstack(
        [mo.md("What changed, in total and unit by unit:"), mo.plain_text(frustum.diff(before, _after).text())]
    )


@app.cell
def _(best, mo):
    subject = mo.ui.dropdown([unit.name for unit in best.units], value=best.units[0].name, label="unit")
    mo.vstack([mo.md("## Why\n\nOther ways are compiled and counted, the best of them told first."), subject])
    return (subject,)


@app.cell
def _(frustum, mo, model, subject):
    mo.plain_text(frustum.explain(model, "edge", subject=subject.value, most=1, probes=0).text())


if __name__ == "__main__":
    app.run()
