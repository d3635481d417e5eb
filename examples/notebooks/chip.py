# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""What sizes of a chip are worth, as a marimo notebook: `marimo edit examples/notebooks/chip.py`."""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="Exploring a chip")


@app.cell
def _():
    from dataclasses import replace
    from functools import cache

    import marimo as mo
    from small_model import small_model

    import frustum

    return cache, frustum, mo, replace, small_model


@app.cell
def _(mo):
    mo.md(
        """
        # Exploring a chip

        A machine is data: every number of it can be changed, and the compiler makes another plan for it. Here are the
        SRAM and the cores of `edge`; a network is compiled for the machine that you choose.
        """
    )


@app.cell
def _(mo):
    sram = mo.ui.dropdown({"24 KiB": 24, "32 KiB": 32, "64 KiB": 64, "512 KiB": 512}, value="64 KiB", label="SRAM")
    cores = mo.ui.dropdown({"1": 1, "2": 2, "4": 4}, value="4", label="cores")
    mo.hstack([sram, cores], justify="start", wrap=True)
    return cores, sram


@app.cell
def _(cache, frustum, replace, small_model):
    edge, model = frustum.targets("edge"), small_model()

    def machine(kib, cores):
        """`edge` with so much SRAM and so many cores."""
        cluster = edge.chip.cluster
        memory = replace(cluster.sram, capacity_bytes=kib << 10)
        chip = replace(edge.chip, cluster=replace(cluster, sram=memory, cores=cores))
        return replace(edge, name=f"{kib} KiB, {cores} cores", chip=chip)

    @cache
    def report(kib, cores):
        """Of a run in mode timing; None where the network does not fit."""
        try:
            return frustum.run(frustum.compile(model, target=machine(kib, cores)), mode="timing").report
        except frustum.Error as error:
            if error.exit_code != 4:
                raise
            return None

    return (report,)


@app.cell
def _(cores, mo, report, sram):
    _found = report(sram.value, cores.value)
    mo.md("It does not fit.") if _found is None else mo.plain_text(_found.text())


@app.cell
def _(mo, report):
    _sizes = (32, 64, 512)
    _rows = []
    for _kib in _sizes:
        _found = report(_kib, 4)
        _rows.append(
            {"SRAM": f"{_kib} KiB", "cycles": "does not fit", "DRAM bytes": "-", "products made again": "-"}
            if _found is None
            else {
                "SRAM": f"{_kib} KiB",
                "cycles": f"{_found['cycles']['total']:,}",
                "DRAM bytes": f"{_found['dram']['total_bytes']:,}",
                "products made again": f"{_found['macs']['recomputed']:,}",
            }
        )
    mo.vstack(
        [
            mo.md("## What SRAM is worth\n\nWith 4 cores. `frustum explore` does this over whole spaces."),
            mo.ui.table(_rows, selection=None),
        ]
    )


if __name__ == "__main__":
    app.run()
