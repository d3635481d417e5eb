"""Plans over clusters, against counts by hand: what is multicast, gathered, summed and exchanged."""

from dataclasses import replace

import pytest
import random_plans
from axis_networks import CHANNELS, HIDDEN, ROWS, SHAPES, mlp, network, windows
from hypothesis import HealthCheck, given, seed, settings

from frustum.backend import targets
from frustum.dialects import graph as g
from frustum.dialects.plan.check import PlanError, check_plan
from frustum.dialects.plan.clusters import check_clusters
from frustum.dialects.plan.count import count
from frustum.dialects.plan.parse import read_plan
from frustum.dialects.plan.tree import Halo, Loop, Over, Sequence

LAYERS = 'compute matmul, unary, "matmul#2"'
IMAGE, RESULT, HIDDEN_MAP = 2 * ROWS * CHANNELS, 2 * ROWS * CHANNELS, 2 * ROWS * HIDDEN
WEIGHTS = 2 * 2 * CHANNELS * HIDDEN
OVER_HIDDEN = "for matmul.c step 5 of 20 over clusters"
OVER_ROWS = "for x0.0 step 3 of 6 over clusters"


def tree(text):
    return read_plan(f'plan @net for "edge" {text}').node


def counted(net, text):
    return count(net, tree(text))


def bytes_of(found):
    return found.read_bytes, found.write_bytes, found.link_bytes


@pytest.fixture(scope="module")
def perceptron():
    return network(mlp, *SHAPES)


@pytest.fixture(scope="module")
def convolutions():
    return network(windows, (1, 2, 12, 10), (4, 2, 3, 3), (2, 4, 3, 3))


# ------------------------------------------------------------ DRAM


def test_one_range_is_one_cluster(perceptron):
    plan = f"{{ resident x1 for x0.0 step 6 of 6 HOW {{ {LAYERS} }} }}"
    one, other = (counted(perceptron, plan.replace("HOW", how)) for how in ("", "over clusters"))
    assert bytes_of(one) == bytes_of(other) == (IMAGE + WEIGHTS, RESULT, 0)
    assert (one.sram_bytes, one.points) == (other.sram_bytes, other.points)


def test_what_clusters_read_alike_is_multicast(perceptron):
    found = counted(perceptron, f"{OVER_ROWS} {{ {LAYERS} }}")
    assert bytes_of(found) == (IMAGE + WEIGHTS, RESULT, 0), "weights once, each cluster its rows"
    one = counted(perceptron, f"for x0.0 step 3 of 6 {{ {LAYERS} }}")
    assert one.read_bytes == IMAGE + 2 * WEIGHTS
    assert found.sram_bytes == one.sram_bytes, "a cluster has the tiles of one pass"
    assert found.points == one.points


def test_a_loop_inside_over_the_same_class_has_the_passes_of_the_cluster(perceptron):
    """Passes 0 and 3, 1 and 4, 2 and 5 are at the same time: the weights are read three times."""
    found = counted(perceptron, f"{OVER_ROWS} {{ for x0.0 step 1 of 6 {{ {LAYERS} }} }}")
    assert bytes_of(found) == (IMAGE + 3 * WEIGHTS, RESULT, 0)
    uneven = counted(perceptron, f"for x0.0 ranges [0, 2, 6] over clusters {{ for x0.0 step 1 of 6 {{ {LAYERS} }} }}")
    assert bytes_of(uneven) == (IMAGE + 4 * WEIGHTS, RESULT, 0), "the first cluster is done after two passes"


def test_a_layer_without_the_class_is_computed_by_all_and_written_once(perceptron):
    """The second product alone is over its channels; clusters make the hidden map alike."""
    loop = f'for "matmul#2.c" step 2 of 8 over clusters {{ {LAYERS} }}'
    found = counted(perceptron, loop)
    assert bytes_of(found) == (IMAGE + WEIGHTS, RESULT, 0)
    assert found.points["matmul"] == 4 * ROWS * CHANNELS * HIDDEN
    apart = counted(perceptron, loop.replace("{ compute", "{ resident unary compute").replace(', "', ' compute "'))
    assert bytes_of(apart) == bytes_of(found)
    moved = counted(perceptron, loop.replace(', "', ' compute "'))
    assert bytes_of(moved) == (IMAGE + WEIGHTS + HIDDEN_MAP, HIDDEN_MAP + RESULT, 0)


def test_outside_distributed_loops_all_clusters_do_the_same(perceptron):
    found = counted(perceptron, f'{{ compute matmul, unary {OVER_ROWS} {{ compute "matmul#2" }} }}')
    assert bytes_of(found) == (IMAGE + WEIGHTS + HIDDEN_MAP, HIDDEN_MAP + RESULT, 0)
    assert found.points["matmul"] == 2 * ROWS * CHANNELS * HIDDEN


# ------------------------------------------------------------ sums


@pytest.mark.parametrize(
    "resident, links",
    [
        ("", 3),  # reduce-scatter: each of four receives the sums of three others for a quarter
        ('resident "matmul#2" sharded x0.0', 3),
        ('resident "matmul#2"', 3),  # no all-gather: nobody reads it here
    ],
)
def test_sums_over_the_class_are_added_over_links(perceptron, resident, links):
    found = counted(perceptron, f"{{ {resident} {OVER_HIDDEN} {{ {LAYERS} }} }}")
    assert bytes_of(found) == (IMAGE + WEIGHTS, RESULT, links * RESULT)


def test_sums_that_wait_as_f32_are_sent_so(perceptron):
    found = counted(perceptron, f'{{ resident "matmul#2" {OVER_HIDDEN} {{ {LAYERS} sum "matmul#2" as f32 }} }}')
    assert found.link_bytes == 2 * 3 * RESULT


def test_each_cluster_begins_its_sum_anew(perceptron):
    """In the first pass nothing is read again; in DRAM lies the sum of all clusters."""
    passes = f"for matmul.c step 1 of 20 {{ {LAYERS} }}"
    kept = counted(perceptron, f'{OVER_HIDDEN} {{ resident "matmul#2" {passes} }}')
    assert bytes_of(kept) == (5 * IMAGE + WEIGHTS, RESULT, 3 * RESULT)
    moved = counted(perceptron, f"{OVER_HIDDEN} {{ {passes} }}")
    assert bytes_of(moved) == (5 * IMAGE + WEIGHTS + 4 * RESULT, 5 * RESULT, 5 * 3 * RESULT)


# ------------------------------------------------------------ residents


def two_loops(resident, first, second):
    return f'{{ {resident} {first} {{ compute matmul, unary }} {second} {{ compute "matmul#2" }} }}'


@pytest.mark.parametrize(
    "resident, first, second, links",
    [
        # rows are made and read where they lie; as copies, each cluster receives the other half
        ("sharded x0.0", OVER_ROWS, OVER_ROWS, 0),
        ("", OVER_ROWS, OVER_ROWS, HIDDEN_MAP),
        # the reader's ranges are others: rows 2 and 3 change places
        ("sharded x0.0", OVER_ROWS, "for x0.0 ranges [0, 2, 6] over clusters", HIDDEN_MAP // 6),
        # four clusters make hidden channels; the shares of rows are 2, 2, 2, 0, of which each made a quarter
        ("sharded x0.0", OVER_HIDDEN, "for x0.0 step 2 of 6 over clusters", HIDDEN_MAP * 3 // 4),
        # each of two reads all that four made, in shares; the clusters that do nothing receive nothing
        ("sharded matmul.c", OVER_HIDDEN, 'for "matmul#2.c" step 4 of 8 over clusters', 2 * HIDDEN_MAP * 3 // 4),
        # a copy in each of four
        ("", OVER_HIDDEN, 'for "matmul#2.c" step 4 of 8 over clusters', 3 * HIDDEN_MAP),
    ],
)
def test_shares_and_copies(perceptron, resident, first, second, links):
    found = counted(perceptron, two_loops(f"resident unary {resident}", first, second))
    assert bytes_of(found) == (IMAGE + WEIGHTS, RESULT, links)
    assert found.received[id(found)] == 0


def test_weights_in_shares_take_a_share_of_sram_and_come_each_pass(perceptron):
    """Each of two clusters has half of the rows of x2, and receives the other half in each of three passes."""
    plan = f"{{ resident x2 SHARDED {OVER_ROWS} {{ for x0.0 step 1 of 6 {{ {LAYERS} }} }} }}"
    trees = [tree(plan.replace("SHARDED", how)) for how in ("sharded x2.0", "")]
    shared, copied = (count(perceptron, each) for each in trees)
    half = WEIGHTS // 4
    assert bytes_of(copied) == (IMAGE + WEIGHTS // 2 * (3 + 1), RESULT, 0)
    assert bytes_of(shared) == (IMAGE + WEIGHTS // 2 * (3 + 1), RESULT, 2 * 3 * half)
    gathered = plan.replace("over clusters {", "over clusters { resident x2").replace("SHARDED", "sharded x2.0")
    assert counted(perceptron, gathered).link_bytes == 2 * half
    sizes = [found.held[id(node.residents[0])] for node, found in zip(trees, (shared, copied), strict=True)]
    assert sizes == [half, 2 * half]


def test_a_share_that_all_compute_is_kept_without_links(perceptron):
    loop = f'{OVER_ROWS} {{ compute "matmul#2" }}'
    found = counted(perceptron, f"{{ resident unary sharded x0.0 compute matmul, unary {loop} }}")
    assert bytes_of(found) == (IMAGE + WEIGHTS, RESULT, 0)


# ------------------------------------------------------------ halos

ROW, MADE_ROW = 2 * 2 * 10, 4 * 2 * 10
"""Bytes of a row of the image (and of the result), and of what the first convolution makes."""
KERNELS = 2 * 2 * 2 * 4 * 9


@pytest.mark.parametrize(
    "body", ['compute conv, "conv#2"', 'resident conv compute conv compute "conv#2"']
)
def test_halos_are_recomputed_or_exchanged(convolutions, body):
    loop = 'for "conv#2.y" step 4 of 12 over clusters'
    again = counted(convolutions, f"{loop} recomputed {{ {body} }}")
    assert bytes_of(again) == ((6 + 8 + 6) * ROW + KERNELS, 12 * ROW, 0)
    assert again.points["conv"] == (5 + 6 + 5) * 10 * 4 * 2 * 9
    sent = counted(convolutions, f"{loop} exchanged {{ {body} }}")
    assert bytes_of(sent) == (12 * ROW + KERNELS, 12 * ROW, (1 + 2 + 1) * (ROW + MADE_ROW))
    assert sent.points["conv"] == 12 * 10 * 4 * 2 * 9


def test_rows_between_two_loops_come_from_the_neighbour_that_holds_them(convolutions):
    loops = " ".join(f'for "{n}.y" step 4 of 12 over clusters {{ compute "{n}" }}' for n in ("conv", "conv#2"))
    found = counted(convolutions, f"{{ resident x0 sharded x0.2 resident conv sharded conv.y {loops} }}")
    assert bytes_of(found) == (12 * ROW + KERNELS, 12 * ROW, (1 + 2 + 1) * (ROW + MADE_ROW))
    plan = tree(f"{{ resident conv sharded conv.y {loops} }}")
    assert count(convolutions, plan).held[id(plan.residents[0])] == 4 * MADE_ROW


def test_rows_roll_inside_a_cluster(convolutions):
    """Each cluster reads 6, 8, 6 rows of the image for its 5, 6, 5 rows, and what rolls twice: 2 rows a pass."""
    inner = 'for "conv#2.y" step 2 of 12 rolling { compute conv, "conv#2" }'
    found = counted(convolutions, f'{{ resident x1, x2 for "conv#2.y" step 4 of 12 over clusters {{ {inner} }} }}')
    assert bytes_of(found) == ((8 + 10 + 8) * ROW + KERNELS, 12 * ROW, 0)
    assert found.points["conv"] == (5 + 6 + 5) * 10 * 4 * 2 * 9


def test_a_neighbour_that_has_a_row_later_is_named(convolutions):
    inner = 'for "conv#2.y" step 2 of 12 { compute conv, "conv#2" }'
    loop = f'for "conv#2.y" step 4 of 12 over clusters exchanged {{ {inner} }}'
    with pytest.raises(PlanError, match=r"no other cluster has .*conv.y 3.* when cluster 1 needs it: make the tensor"):
        counted(convolutions, f"{{ resident x0 {loop} }}")
    around = loop.replace("{ for", "{ resident x0, conv compute conv for", 1).replace("compute conv, ", "compute ")
    assert bytes_of(counted(convolutions, around))[2] == (1 + 2 + 1) * (ROW + MADE_ROW)


# ------------------------------------------------------------ the page


def four_layers(x, w, v):
    *layers, down = mlp(x, w, v)
    return *layers, down, g.UnaryOp("relu", down.result)


# a copy is gathered: each of four clusters receives three quarters
@pytest.mark.parametrize("how, links", [("sharded rows", 3), ("", 3 + 3)])
def test_the_example_of_the_page(how, links):
    net = network(four_layers, *SHAPES)
    for layer, name in zip(net.layers, ("up", "gelu", "down", "relu"), strict=True):
        layer.name = name
    net.layers[2].result.name = "y"
    rows, hidden = net.layers[0].result.axes
    rows.name, hidden.name = "rows", "hidden"
    (text,) = [each for each in random_plans.PAGE_PLANS if "@perceptron" in each]
    found = count(net, read_plan(text.replace("sharded rows", how)).node)
    assert bytes_of(found) == (96 + 640, 96, links * 96)
    assert IMAGE == RESULT == 96 and WEIGHTS == 640


# ------------------------------------------------------------ nodes, refusals


def test_links_are_counted_for_nodes_and_residents(perceptron):
    plan = tree(f'{{ resident "matmul#2" {OVER_HIDDEN} {{ {LAYERS} }} }}')
    found = count(perceptron, plan)
    assert found.received[id(plan)] == found.received[id(plan.children[0])] == found.link_bytes == 3 * RESULT
    plan = tree(two_loops("resident unary", OVER_ROWS, OVER_ROWS))
    found = count(perceptron, plan)
    assert found.received[id(plan)] == found.received[id(plan.residents[0])] == found.link_bytes == HIDDEN_MAP
    assert not any(found.received[id(child)] for child in plan.children)


REFUSED = {
    f"for matmul.c step 5 of 20 over clusters {{ for x0.0 step 3 of 6 over clusters {{ {LAYERS} }} }}":
        "for x0.0 over clusters: a loop around it is over clusters too; distribute one",
    f"{OVER_ROWS} rolling {{ {LAYERS} }}": "rows cannot roll; recompute or exchange halos",
    f"for x0.0 step 3 of 6 over cores {{ {LAYERS} }}": "for x0.0 over cores : only passes in time are counted",
    f"for x0.0 step 3 of 6 exchanged {{ {LAYERS} }}": "for x0.0 over time exchanged: only passes in time",
    f"{OVER_ROWS} {{ resident x1 sharded x1.0 {LAYERS} }}": "sharded x1.0 inside a loop over clusters",
    f"{{ resident x1 [x1.0 0:4] sharded x1.1 {OVER_ROWS} {{ {LAYERS} }} }}": "a part is not sharded x1.1; shard",
    f"{{ resident matmul resident unary at matmul sharded x0.0 {OVER_ROWS} {{ {LAYERS} }} }}": "one of them is sharded",
    f"for x0.0 step 2 of 6 rolling {{ {OVER_ROWS} {{ {LAYERS} }} }}": "rows of for x0.0 around it roll from cluster to",
    f"{OVER_ROWS} subsets cores [1] {{ {{ {LAYERS} }} }}": "a sequence on subsets: only children in order are counted",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_counted_is_named(perceptron, text):
    with pytest.raises(PlanError, match=REFUSED[text]):
        counted(perceptron, text)


def test_shares_need_a_loop_that_is_distributed(perceptron):
    check_plan(perceptron, tree(f"{{ resident x1 sharded x1.0 {OVER_ROWS} {{ {LAYERS} }} }}"))
    late = f'{{ resident x1 until unary sharded x1.0 compute matmul, unary {OVER_ROWS} {{ compute "matmul#2" }} }}'
    with pytest.raises(PlanError, match="no loop or subset is distributed here"):
        check_plan(perceptron, tree(late))


def test_more_ranges_than_the_machine_has_clusters():
    plan = tree(f"{OVER_HIDDEN} {{ {LAYERS} }}")
    check_clusters(plan, targets.load("default"))
    with pytest.raises(PlanError, match=r"for matmul.c over clusters: 4 ranges, edge has 1 cluster: take a larger"):
        check_clusters(plan, targets.load("edge"))


# ------------------------------------------------------------ random plans


def in_time(node, cluster=True):
    """The plan with one range in each loop over clusters: on one cluster, or in time."""
    match node:
        case Loop():
            over = {"edges": (0, node.edges[-1]), "over": Over.CLUSTERS if cluster else Over.TIME} if node.over else {}
            halo = Halo.NONE if node.halo is Halo.EXCHANGED else node.halo
            return replace(node, body=in_time(node.body, cluster), halo=halo, **over)
        case Sequence():
            residents = tuple(replace(each, sharded="") for each in node.residents)
            return replace(node, children=tuple(in_time(each, cluster) for each in node.children), residents=residents)
    return node


@seed(3)
@settings(max_examples=12, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_plans.distributed())
def test_a_plan_with_one_range_is_one_in_time(case):
    try:
        time = count(case.axes, in_time(case.plan, cluster=False))
    except PlanError as problem:
        assert "an earlier pass has put" in str(problem)
        return
    one = count(case.axes, in_time(case.plan))
    assert bytes_of(one) == (*bytes_of(time)[:2], 0) and one.sram_bytes == time.sram_bytes
    assert one.points == time.points
