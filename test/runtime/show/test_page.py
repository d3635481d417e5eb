"""The page: its figures are the report's, it is refused in time, and (with a browser) it works for everybody."""

import json
import shutil

import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper
from shown import drawn, shown

from frustum.runtime.show.page import page, page_data, snippets
from frustum.runtime.study import planned
from frustum.runtime.tools import cli

CHROMIUM = shutil.which("chromium")


def test_figures_are_those_of_the_report():
    run = shown()
    data, report = page_data(run.chain, run.ran, run.report), run.report.data
    for name, value in data["report"].items():
        assert value == report[name]
    assert sum(unit["dram_bytes"] for unit in data["units"]) == sum(each["dram_bytes"] for each in report["layers"])
    assert sum(unit["macs"] for unit in data["units"]) == report["macs"]["executed"]
    for mine, unit in zip(data["units"], report["units"], strict=True):
        assert mine["cycles"] == sum(wait["cycles"] for wait in unit["waits"])
        assert mine["bound_cycles"] == unit["bound_cycles"]
    (one,) = data["runs"]
    assert one["total"] == report["cycles"]["total"]
    engines = report["engines"]
    for each in one["gantt"]:
        assert each["busy"] == engines[each["name"]]["busy"]
    ends = {name: 0 for name in report["peak_bytes"]}
    for memory, _, address, size, *_ in one["buffers"]:
        ends[memory] = max(ends[memory], address + size)
    assert ends == report["peak_bytes"]


def test_names_of_a_model_never_become_html():
    run = shown()
    evil = "</script><script>alert(1)</script>{{js}}"
    run.report.data["model"], before = evil, run.report.data["model"]
    try:
        text = page(run.chain, run.ran, run.report)
    finally:
        run.report.data["model"] = before
    assert text.count("</script>") == 2 and "alert(1)</script>" not in text
    inside = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inside)["report"]["model"] == evil


def test_curves_that_were_found_are_shown(tmp_path, monkeypatch):
    """Nothing is searched for a page; what `frustum curve` has kept is there."""
    monkeypatch.setenv("FRUSTUM_CACHE", str(tmp_path / "cache"))
    model, page = onnx_models.save(tmp_path), tmp_path / "run.html"

    def curves(*words):
        assert cli.main(["run", model, "--target", "edge", "--html", str(page), "--quiet", *words]) == 0
        return json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])["curves"]

    monkeypatch.setattr(planned, "_searched_curve", lambda *_: ([64, 128], [4000, 100]))
    assert curves() == []
    assert cli.main(["curve", model, "--target", "edge", "--svg", str(tmp_path / "curve.svg")]) == 0
    (one,) = curves()
    assert one["svg"] == (tmp_path / "curve.svg").read_text() and "<svg" not in page.read_text().partition("<main")[0]
    assert curves("--no-cache") == []


def test_curves_are_drawn_that_are_given(tmp_path):
    run = shown()
    curve = planned.Curve("<net>", [64, 128], [4000, 100], 100)
    assert page_data(run.chain, run.ran, run.report)["curves"] == []
    file = tmp_path / "run.html"
    file.write_text(page(run.chain, run.ran, run.report, curves=[curve]))
    assert "<net>" not in file.read_text() and curve.svg() not in file.read_text()
    if shutil.which("node"):
        assert drawn(file, "curve-g")["curve-g"].strip() == "<net>"


def test_a_layer_is_found_at_every_stop(tmp_path):
    (tmp_path / "00-imported.mlir").write_text('a = op loc("conv")\nb loc("other")\n')
    (tmp_path / "01-typed.mlir").write_text(" \n" + '  c loc("conv")\n' * 9 + "long " * 99 + 'loc("pool")\n')
    first, second = snippets(tmp_path, {"conv", "pool"})
    assert first == {"stop": "00-imported.mlir", "lines": {"conv": [[1, 'a = op loc("conv")']]}}
    assert [line for line, _ in second["lines"]["conv"]] == [2, 3, 4, 5, 6]
    assert second["lines"]["pool"][0][1].endswith(" ...")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page of the command, with the IR."""
    folder = tmp_path_factory.mktemp("page")
    model = onnx_models.save(folder)
    words = ["run", model, "--html", str(folder / "run.html"), "--dump-ir", str(folder / "ir"), "--quiet"]
    assert cli.main(words) == 0
    return folder / "run.html"


def test_command_writes_one_file_without_network(written):
    text = written.read_text()
    assert len(text) < 2_000_000 and "data-ready" not in text
    assert "http://www.w3.org/2000/svg" in text and text.count("http") == text.count("http-equiv") + 1
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert len(data["ir"]) == 7 and any(stop["lines"] for stop in data["ir"])
    assert np.isfinite(data["report"]["cycles"]["total"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--html", "-"], "the page is written to a file"),
        (["--html", "x.html", "--mode", "functional"], "--html needs --mode full or timing"),
        (["--html", "x.html", "--stream", "2"], "a page is of one input"),
        (["--html", "{tmp}/none/x.html"], "cannot be written"),
    ],
)  # fmt: skip
def test_refused_before_the_work(tmp_path, capsys, words, said):
    model = onnx_models.save(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["run", model, *(word.replace("{tmp}", str(tmp_path)) for word in words)]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


# --- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make pages")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


OUTSIDE = """() => [...document.querySelectorAll('svg text')].filter(text => {
  const all = text.ownerSVGElement.getBoundingClientRect(), own = text.getBoundingClientRect();
  return own.width && (own.left < all.left - 2 || own.right > all.right + 2 || own.top < all.top - 2
    || own.bottom > all.bottom + 2); }).map(text => text.textContent)"""


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_for_everybody(browser, written, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make pages")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, said, asked = context.new_page(), [], []
    tab.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(written.as_uri())
    tab.wait_for_selector('body[data-ready="1"]')
    assert said == [] and asked == [written.as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(OUTSIDE) == []
    assert [each["id"] for each in axe.Axe().run(tab).response["violations"]] == []
    context.close()


def test_works_by_keyboard(browser, written):
    tab = browser.new_page()
    tab.goto(written.as_uri())
    rows = tab.locator("#lay-t tbody tr")
    layers = rows.count()
    names = tab.locator("#lay-t tbody button")
    chosen = names.nth(0).inner_text()
    names.nth(0).focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#lay-t tr.on").count() == 1
    assert tab.locator("#ir pre").count() > 1, "its IR at the stops"
    tab.locator("#search").focus()
    tab.keyboard.type(chosen)
    assert 1 <= rows.count() <= layers and tab.locator("#lay-n").inner_text() == f"{rows.count()} of {layers}"
    tab.locator("#search").fill("")
    tab.locator("#lay-t th button", has_text="cycles").focus()
    tab.keyboard.press("Enter")
    cycles = [int(cell.replace(",", "")) for cell in tab.locator("#lay-t tbody td:nth-child(6)").all_inner_texts()]
    assert cycles == sorted(cycles, reverse=True)
    assert tab.locator('#lay-t th[aria-sort="descending"]').inner_text().startswith("cycles")
    tab.locator("#z-in").focus()
    before = tab.locator("#time-g svg").get_attribute("aria-label")
    tab.keyboard.press("Enter")
    assert tab.locator("#time-g svg").get_attribute("aria-label") != before
    tab.close()


@pytest.fixture
def tab(browser):
    opened = browser.new_page()
    yield opened
    opened.close()


def test_the_slider_begins_with_the_first_step(tab, tmp_path):
    run = shown()
    (tmp_path / "run.html").write_text(page(run.chain, run.ran, run.report))
    (one,) = page_data(run.chain, run.ran, run.report)["runs"]
    number, found = next((n, each) for n, each in one["frustums"].items() if each["drawn"] > 2)
    tab.goto((tmp_path / "run.html").as_uri() + f"#unit={one['units'][int(number)]}")
    slider, parts = tab.locator("#step"), lambda colour: tab.locator(f'#fr-g polygon[style*="--{colour}"]').count()

    def expected(step):
        """Layers that owner 0 works on in a step."""
        return sum(any(piece[:2] == [step, 0] for piece in map(list, each["pieces"])) for each in found["layers"])

    assert tab.locator("#step-v").inner_text() == f"1 of {found['drawn']}"
    assert (slider.input_value(), parts("made"), parts("done")) == ("0", expected(0), 0) and expected(0) > 0
    slider.focus()
    tab.keyboard.press("ArrowRight")
    assert tab.locator("#step-v").inner_text() == f"2 of {found['drawn']}"
    assert parts("made") == expected(1) and parts("done") > 0, "those of the first step"
    tab.keyboard.press("Home")
    assert (parts("made"), parts("done")) == (expected(0), 0)


def test_the_graph_is_walked_by_keyboard(tab, written):
    tab.goto(written.as_uri())
    names = tab.locator("#lay-t td button").all_inner_texts()
    region, chosen = tab.locator("#graph-g"), tab.locator('#graph-g text[font-weight="700"]')
    region.focus()
    tab.keyboard.press("ArrowDown")
    first = names.index(tab.locator("#lay-t tr.on button").inner_text())
    for step, name in enumerate(names[first + 1 :], 1):
        tab.keyboard.press("ArrowDown")
        assert tab.locator("#lay-t tr.on button").inner_text() == name, step
        assert any(words.startswith(name) for words in chosen.all_text_contents())
    tab.keyboard.press("ArrowDown")  # there is none behind the last
    assert tab.locator("#lay-t tr.on button").inner_text() == names[-1]
    tab.keyboard.press("ArrowUp")
    assert tab.locator("#lay-t tr.on button").inner_text() == names[-2]
    assert tab.evaluate("document.activeElement.id") == "graph-g"


def test_a_chain_of_several_pieces(tab, tmp_path):
    """Convolution, a node that the device lacks, convolution: two runs of the device."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32, 32, 32]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(np.ones((32, 32, 3, 3), np.float32), name) for name in ("w", "v")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="before", pads=[1, 1, 1, 1]),
        helper.make_node("Hardmax", ["a"], ["b"], name="between", axis=1),
        helper.make_node("Conv", ["b", "v"], ["y"], name="behind", pads=[1, 1, 1, 1]),
    ]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    words = ["run", onnx_models.save(tmp_path, model), "--target", "edge", "--quiet", "--html"]
    assert cli.main([*words, str(tmp_path / "run.html")]) == 0
    said = []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto((tmp_path / "run.html").as_uri())
    runs, unit = tab.locator("#run"), tab.locator("#unit")
    assert runs.is_visible() and runs.locator("option").count() == 2
    seen = []
    for number in ("1", "0"):
        runs.select_option(number)
        seen.append(unit.locator("option:checked").inner_text().partition(": ")[2])
        for drawing in ("#fr-g", "#time-g", "#mem-g"):
            assert tab.locator(f"{drawing} svg").count() == 1, drawing
    assert seen == ["behind", "before"]
    tab.locator("#lay-t td button", has_text="behind").click()
    assert runs.input_value() == "1", "the piece follows the layer"
    tab.locator("#lay-t td button", has_text="between").click()
    assert tab.locator("#lay-t tr.on td", has_text="host").count() == 1
    assert said == []
