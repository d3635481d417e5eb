# Tests: test/passes/plan/test_piece_cycles.py
"""Every number of the planner that no machine file gives: shares in its cycle models, and how far its searches look.

Beside each stands what set it: the change that measured it, or the test that holds it.  Two tests hold the cycle
models as a whole against the emulator: `test_piece_cycles.py` (a layer alone, within 4 %) and `test_cost.py` (small
networks, within 20 %); `benchmarks/measure.py` measures what plans that they choose take.
"""

# --- answers that are kept for equal questions, of other networks and machines too

# Of each kind, at most; a network of 500 layers asks some 5,000 different questions.
MOST_PLANS = 20_000

# --- cycles of a layer's nest of pieces (pieces.py, piece_cycles.py)

# Events and latencies of one piece, as searches compare nests; larger pieces also emulate faster.  What is chosen is
# predicted without it, by the round trip of a piece: chunks of two channels took 11,032 cycles where that said 7,800
# (1x1 convolution of squeezenet, `edge`), so that searches need it.
PIECE_CYCLES = 8
# The port of SRAM: how chunks of several cores and of the bus wait for each other there (`last_wait`, `bus_waits` and
# `port_share` in piece_cycles.py) brings 98, not 85 %, of the units of ResNet-50 on `default` within 5 %.  Searches
# leave it out, and the round trip: ResNet-50 took 561,955 cycles with it, 547,741 without.
# Compacted pieces must take less than this part of the cycles otherwise: their short runs keep the SRAM port from
# weights that arrive meanwhile.  No measurement is recorded; the strided layers of `benchmarks/measure.py` show it.
COMPACT_GAIN = 0.75
# What both units of a core share must take less than this part of the cycles otherwise, round trips of pieces included:
# of small pieces the copies show, not the units.  A 3x3 with strides of 56 x 56 x 144 on `default`, f16, was to take
# 0.85 of its cycles so and took 1.04; without this mbconv_56_s2 took 9,124 cycles, 8,670 with it, while kernels of 7x7
# of 192 channels (0.75 to 0.82) keep what they gain: 74.1 to 68.2 k cycles for three blocks of ConvNeXt.
SHARED_GAIN = 0.84
# Cores own strips where that takes at most so many times the cycles.  Of the first unit of vgg5 (int8, `units4`) what
# cores take of each other fell from 17.7 to 0.13 MB so, in 0.25 % more cycles of the network (0.9 % of its unit by the
# model).
OWNED = 1.01
# Pieces whose sums the cores add must take less than this part of the cycles otherwise: their result is there only at
# the end, so that the next layer begins later.  Without this SqueezeNet took 50,459 cycles instead of 48,008.
SUMS_GAIN = 0.75
# Nor are there such pieces where weights come from DRAM for more than this part of the time: ResNet-50 took 650,737
# cycles with them, 605,262 without.
MOSTLY_WEIGHTS = 0.5
# Cycles behind the last chunk of streamed weights count where computing takes at least this part of the time that the
# weights do.  Two products of 512 x 768 x 3072 on `default` went from 119.1 to 116.1 k cycles, ResNet-50 from 524.9 to
# 519.5 k, SqueezeNet from 43.0 to 42.7 k; counted everywhere AlexNet would take 2 % longer.  Counted for results of
# several pieces too the two products take 114.2 k; without what small chunks wait for DRAM a conformer block would
# take 20,076 cycles instead of 18,001, and 18,928 without either.
COMPUTED_SHARE = 0.5
# Share of weights in one piece that is not loaded while the layer before is computed.  With it mobilenetv1 went from
# 1.9 to 1.35 M cycles at 1 MiB, as did `PIECE_CYCLES`, `HIDDEN`, `WAITED`, `LAYER_CYCLES`, `PIECE_SHARE` together.
LATE = 0.3
# Chunks of streamed weights on their way at a time in a unit of several passes: its tiles leave SRAM no room for more
# copies, so that small ones wait for the latency of DRAM.  ResNet-50 of 16 images went from 3,997 to 3,961 k cycles;
# with smaller chunks that leave room for four copies it took 4,065 k.  Only where there are several
# images: of one image nothing was measured.
STREAM_COPIES = 2

# --- cycles of a unit (cost.py)

# Filling and draining the pipeline of one tile.  No measurement is recorded; plans depend on it little, since bytes
# come first, and `benchmarks/sums.py` says whether any does.
PASS_CYCLES = 500
# Share of computing and transfers that shows although they overlap, of several images or tiles that follow each other.
# It prefers less work on chip at equal DRAM time; `test_default_search.py` counts that no search beats the plans.
OVERLAPPED = 0.2
# The same share in the model of one image, which counts what surely shows by itself: `test_cost.py`.
HIDDEN = 0.05
# Share of weights in which nothing is computed, before the first of several passes or streamed: `test_cost.py`.
WAITED = 0.3
# Latencies and events of the pieces of one layer in one pass, in the search over all shapes: `test_cost.py`.
LAYER_CYCLES = 300
# The search takes a piece for at most this part of NRAM: two copies of what is read, and of what is made.
PIECE_SHARE = 4

# --- runs of layers in a core (unit_runs.py, passes/tile/choose_runs.py)

# Layers of one run at most: the ways to part a unit into runs are all looked at.
MOST_IN_RUN = 6
# A unit has runs where it takes less than this part of its cycles otherwise.  At 1.0 MobileNet v1 on edge took 0.1 %
# longer with a run that the model found 0.3 % shorter; SqueezeNet there went from 930 to 880 k cycles with either.
RUN_GAIN = 0.99
# Loads for which the first piece of a step waits besides its own, where more pieces follow: second pieces of other
# cores are in the queue of the SRAM port too.  Without it a convolution and its pool (64 channels, 224 x 224, f16,
# `default`) had two pieces a step, whose loads showed for 14,400 cycles: the head of VGG took 143,661, not 132,357.
QUEUED = 1
# Times the bytes of a unit over the DRAM port: steps of more rows may read rows of which nothing is made.
RUN_BYTES = 1.005
# Strips across those that are dealt to clusters, at least, where others than the search's are taken for the cores: of
# few, what is made and stored at the ends counts for more than the model has it.  A group norm with a convolution of
# 64 x 160 x 100 (f16, `default`) takes 67.5 k cycles in 2 strips and 60.9 k in 3; 128 x 128 x 128 209.0 k in 8 and
# 241.9 k in 12.
FEWEST_STRIPS = 4
# Two units that follow each other are one where their cores have less than this part of their cycles to do:
# SqueezeNet on the default target went from 50.3 to 45.7 k cycles, Inception v1 from 230 to 219 k.  At 0.95 a U-Net of
# 128 x 128 took 44,164 cycles instead of 43,689, three blocks of ConvNeXt 68,960 instead of 68,185, and a Conv-TasNet
# 47,261 instead of 47,743.
JOIN_GAIN = 0.99
# Where rows roll: times the rows of a step that are looked at, in which less is made again.
STEPS_OF_RUNS = (2, 4, 8)

# --- cycles of units that follow each other (makespan.py); `benchmarks/unit_cycles.py` compares unit by unit

# All were set together, f16: runs as a whole are predicted within 6 % (squeezenet, shufflenet, alexnet on `default` and
# `edge`, resnet50 on `default`), inception_v2 on `default` 20 % short: there the loads into WRAM do not fill the port.
# Units by which the loads of weights are ahead of the chain of layers at most.
AHEAD = 16
# Shares of SRAM and of the WRAM of all cores in which weights find room before their unit: bytes lie where the
# allocator has put them, and cores have other weights too.
ROOM, ROOM_IN_CORES = 0.85, 0.5
# Share of a unit's work that is done behind the last of its weights.
LAST_PART = 0.3
# Pieces whose sending to other clusters shows behind the last of them: a 1x1 convolution of shufflenet on `default` in
# four pieces a core took 1,023 cycles, 812 without sends, of which each piece has 90.
LAST_SENDS = 2
# Until the first instructions are there.
START_CYCLES = 600
# Share of the cycles that columns dealt to clusters take longer than rows: their runs are short, and so are those of
# the borders that clusters send.  ResNet-50 on `default` went from 679 to 650 thousand cycles.
COLUMNS_SHOW = 0.03

# --- tiles of one unit (unit.py)

# Widths at which something fits, from the full row down, and heights of each: beyond these only the borders grow.
# Tiles whose cycles are modelled for each dimension that is dealt to clusters, those with the fewest DRAM bytes first.
# `test_pieces.py` looks at everything instead and finds no tile that is much better.
WIDEST = 2
LARGEST_HEIGHTS = 3
LOOKED_AT = 8

# --- products in rounds of input channels (rounds.py)

# Rounds of a product at most: its sums are rounded to the element type after each.
MOST_ROUNDS = 128
# Bytes of a map's channels in one round at least, where they lie one behind the other: shorter runs keep the DRAM port
# busy for longer than they take.
ROUND_RUN_BYTES = 32

# --- shapes and weights in the search over a whole network (network/)

# Column strips that are tried, and the fewest columns of one: narrower strips read more than they save.
STRIPS = (1, 2, 3, 4, 6, 8, 12)
FEWEST_COLUMNS = 8
# Those that are tried where all of them are equally wide: maps of 224 columns and their halvings have strips of 16 and
# 32 so, which fill lines.  mbconv_se_112_b4 in f16 on `default` takes 167.5 k cycles instead of 173.0; tried anywhere,
# 7 strips of 200 columns took convtasnet_tcn 2.6 % more.
EVEN_STRIPS = (7,)
# Where rows and columns are kept: rows of a step, and columns of it; of maps of one image on one cluster, where a
# row of the widest map near the last layer takes more than this part of SRAM.  What is kept is then two rows of a 3x3
# window, not three or four; where rows of all maps fit whole, nothing is saved.
RASTER_ROWS, RASTER_COLUMNS, RASTER_SHARE = (1, 2, 4, 8), (16, 32, 64, 128), 64
# Share of the cycles that they take longer than the search says: they have no runs of layers, and the pieces of all
# rows of a step are dealt in one way only.  Of VGG's head (f16, `edge` with 320 KiB) steps of 16 positions took 8.61 M
# cycles, strips of rows 8.26 M, where both were to take 8.12 M; steps are therefore one fill of all lines at least.
RASTER_SHOWS = 0.1
# Times the multiply-accumulates of a group with overlapping borders (docs/techniques/tfu.md, rule 11: 100 % more).
MOST_RECOMPUTED = 2.0
# Times the bytes of writing and reading a map that is needed again behind a sum over all of it, that to make it again
# takes at most (squeeze_excite with 128 channels of 160 x 160 in f16 on `edge`: 0.13, and 16.5 MB become 4.96).
AGAIN_AT_MOST = 0.8
# Share of a plan's bytes that an input of the network must save by staying in SRAM, to be copied there.
HELD_AT_LEAST = 0.05
# Share of a cluster's SRAM that an input takes at most which far layers read again, to be copied there before anything
# is planned.  Blocks of transformers in f16 on `default` (0.09 to 0.19): 1.01 to 1.03 times the compulsory bytes become
# 1.000, in 0.9 to 1.17 times the cycles.
HELD_SHARE = 0.25
# Share of the compulsory bytes that such inputs save at least: of twelve blocks of GPT-2 the input is 0.2 %, and to
# plan them twice would take 4 s more.
HELD_FAR_AT_LEAST = 0.005
# Such maps of batches for time are made again where that moves at most `FAR_FEWER` times the bytes in `AGAIN_SLOWER` of
# the modelled cycles, which do not know yet what runs in the cores save: `mbconv_se_112_b4` in f16 on `edge` is 1.45
# times by model and moves 7.4 instead of 36.3 MB in 6.1 instead of 7.7 million cycles.
FAR_FEWER, AGAIN_SLOWER = 0.5, 1.5
# Times the cycles of a layer of the vector unit that is a unit by itself, its result in the place of its operand: these
# are exact, and the search's cycles of groups do not know what runs in the cores save.  With 1 a block of MobileNet v3
# (28 x 28, f16, `edge`) took 182,163 cycles, with the product behind it in one unit 167,289.
APART_IN_PLACE = 2.0
# A chunk of streamed weights is at most this part of SRAM, or so many bytes: the pieces decide how large it is.
# In less than 12 KiB of SRAM that is too much (docs/optimal.md, "Known limits").
CHUNK_SHARE = 128
SMALLEST_CHUNK_BYTES = 2048
# Fewer streamed weights than the search thinks necessary are tried first, where they are read in every pass:
# SqueezeNet on edge went from 3.81 to 2.78 MB.
FEWER = 2
# Share of WRAM that weights may take which stay there through all passes over the tiles of a unit (the rest is for the
# pieces of one layer), and the fewest bytes that are kept so.  ResNet-50 of 16 images on `default` takes 4,007 k cycles
# and moves 217 MB without, 3,567 k and 156 MB with a share of 0.875, 3,549 k and 155 MB with 0.95.
CORE_SHARE, LEAST_KEPT = 0.95, 4096
# Part of that share that the search for the fewest bytes gives to layers of one image where a unit has several with
# weights.  No other part was measured.  Counted by whole layers with it ResNet-50 on `edge` moves 76.1 MB; with all
# bytes of the cores as one room, without it, 86.2 MB, for layers that were expected there had no room.  Never in plans
# for time: with them DenseNet-121 on `edge` took 13.1 instead of 9.5 million cycles.
AMONG_OTHERS = 0.8
# Shapes of a given unit that are tried, the cheapest first (`test_given_units.py`).
TRIED = 8
# Shapes of a group that are tried where the cheapest has no pieces that fit.
ALTERNATIVES = 24
# Shapes of a group of which the fastest is taken by exact numbers, where time comes first.  This, `MUCH_SLOWER`,
# `CORRECTIONS` and `ONCE` came with batches planned for time: ResNet-50 of 16 images 22.2 to 5.6 M cycles.
ALIKE = 4
# Times the fewest DRAM bytes that a plan for time may move, and times the states of a cut that are then looked at.
BUDGET, WIDER = 1.02, 2
# Times the modelled cycles of the plan with the fewest bytes: others must be clearly faster, as the model errs between
# plans of one network (squeezenet on `default`: 49,267 measured cycles, 50,477 of a plan 2 % faster by model).
CLEARLY_FASTER = 0.97
# The same where a plan for less SRAM goes too and moves more bytes: 1 % is what more SRAM may cost in time.
FASTER_BELOW = 0.99
# Times the fewest bytes up to which a plan for time may move what one for less SRAM does, only to be faster; steps of
# less SRAM that are looked at.  ResNet-50 on one cluster of `default`: 1.74 to 1.00 million modelled cycles, with 1.09
# times the compulsory bytes; with all of what the smaller SRAM moves, 1 % faster with 1.17 times.
MOST, RUNGS = 1.08, 3
# Times the fewest bytes that ways move at most that are looked at in order not to be slower than with less SRAM; they
# are taken where bytes rise by a smaller factor than cycles fall.
HIGHEST = 3
# Times the search's cycles, when exact numbers correct the search, and how often they do.
MUCH_SLOWER = 1.4
CORRECTIONS = 4
# So much more time is given for weights that are read once, and fewer bytes.
ONCE = 1.25

# --- how long the search over a whole network is (network/); times of planning are in `benchmarks/README.md`

# Layers up to which every order is searched in full; beyond which one order is searched; beyond which less of it is.
# With up to 200 layers searched in full FastestDet moves 1.005 and NanoDet 1.002 times the compulsory bytes.
SMALL, MANY, LARGE = 24, 120, 200
# Sets of resident maps that are kept at a cut, and of a group's outputs any subset of so many may stay:
# `test/support/brute_force.py` finds no cheaper plan of small networks.
MOST_STATES = 48
MOST_KEPT = 3
# Times the cycles in which the DRAM port moves a byte: what a byte weighs where the most promising states are those
# with few cycles; bytes first are a share of their own.
BYTE_WEIGHTS = (0.0, 1.0, 4.0)
# Share of SRAM of a constant that the search counts as whole and as loaded once, like a weight: larger ones are planned
# tile by tile, as they are loaded.  Scales and shifts of a layer of BERT counted by tiles as well let the search take
# plans that move 3 KiB less for faster (163,550 cycles on `default`, 155,852 so).
HELD_CONSTANT = 1 / 64
# Share of the bytes that may be moved by which states of a cut with the same maps in SRAM differ, where there are more
# than are looked at: a diffusion block takes 59,573 cycles on `default` where all count, 53,932 so.
ALIKE_BYTES = 0.001
# States of a cut in the search that finds an order and a bound, of large networks, of very large ones.  No measurement
# of single ones is recorded; `benchmarks/README.md` has the seconds that planning takes with them.
QUICK_STATES = 6
MANY_STATES, LARGE_STATES = 12, 4
# Layers of a group: the first that any two units of the plan, which follow each other, do not exceed together; of very
# large networks not the last.  The nine networks of the zoo have the same plans on the default target and on edge as
# with groups of up to 48 layers, which took twice the time.
LENGTHS = (12, 24, 48)
# Share that a chunk of a hidden map takes of what the maps around it leave of SRAM, and how many chunks there are at
# most: a layer of 512 tokens in 2 MiB of `df` moves 17.3 MB in chunks of half, 21.2 MB of three quarters.
HIDDEN_SHARE, MOST_CHUNKS = 0.5, 32
# Share that such a chunk takes of what a band of rows leaves of SRAM, where there is no room for all rows and time is
# to be least; what rows of a band and channels of a chunk are a multiple of, to fill lines and lanes; how many bands
# there are at most.  1,024 rows of 320 and 1,280 channels in f16 on `edge`, 2.61 million cycles without: in 4
# bands of 256 rows 2.07 million with chunks of 96 channels, 2.12 of 64, 2.30 of 128, 2.28 of 80; in 3 bands, beside
# which 48 channels take half of the rest, 3.31 million, with 6.2 MB instead of 7.9.
BAND_SHARE, BAND_STEP, MOST_BANDS = 0.25, 16, 16
# Share that the channels of a hidden map which stay take of what the maps around leave of SRAM, the fewest that stay,
# and the part of all that other parts have at least: a block of ViT on `edge` moves 17.81 MB with none, 17.61 with 256
# of 3072 channels.  Modelled cycles are 4.05 million without, 4.13 with the other 2816 as one part, 3.90 as two.
HELD_HIDDEN, HELD_CHANNELS, FEWEST_OF_PARTS = 0.5, 32, 8
# Share that a chunk of a convolution's input takes of what its sums leave of SRAM, beside what it is made of, and how
# many convolutions of a network are tried so at most.
INPUT_SHARE, MOST_IN_CHUNKS = 0.25, 4
# Share of SRAM that the part of a convolution's result which stays takes with what the convolution reads, or with the
# whole result behind it: the rest is for pieces of both, and for weights.
RESULT_BESIDE = 0.88
# Share of SRAM that queries, keys and values of some heads take with what their products read and what is summed up, or
# where that does not stay, alone.  A block of GPT-2 of 256 tokens on `edge` moves 20.5 MB with one head beside its map
# (0.9375 of SRAM), 22.8 without; a layer of 512 tokens 37.7 MB with two heads at a time (0.75 of SRAM), 42.5 without.
HEADS_BESIDE, HEADS_SHARE = 0.94, 0.8
# Times the compulsory bytes: of a network of more than `SMALL` layers no better solution is looked for; enough where
# only the search of more ways finds it.  Planning of ResNet-50 went from 4.8 to 2.7 s, of Inception v1 from 27 to 10 s.
NEAR, NEARLY = 1.0005, 1.001
# Solutions looked at before groups that do not fit after all are given up, and ways of some layers that do not fit
# before they are no group any more: YOLOX in 19 s instead of minutes.
TRIES = 24
MOST_BANNED = 4

# Share of a plan's cycles that sending a map to all clusters takes at least, for planes of it to be reduced row by row
# on trial.  Three blocks of EfficientNet on `default`: 0.18 each, 60,135 -> 32,252 cycles in all.
SENT_SHARE = 0.02

# Parts of the matrix unit's lines that a small window of planes pooled in two steps fills one of.  mbconv_se_112_b4
# (f16, `default`) takes 162,470 cycles with 1 (16 x 4), 161,986 with 2 (16 x 2), and 166,229 with windows of 8 x 28.
WINDOWS_OF_LINES = 2

# --- tensors that stay in SRAM in the order of DRAM (passes/lower/keep_tensors.py)

# Share of SRAM that they and all buffers of a unit may take together: buffers leave holes between each other.
KEPT_SRAM_SHARE = 0.9
# Of NRAM, what units are planned with that are cut smaller so that a tensor may stay beside them: what goes from SRAM
# to SRAM needs some.  A block of Swin on `edge` moves 1.80 times what is compulsory so, 2.37 with all of NRAM, 3.58
# where no unit is cut smaller (figures here from before its rows took the windows' order: 1.00 since).
ROOM_NRAM_SHARE = 0.75
# Moves between tensors take one part of so many of SRAM, so that tensors may stay beside them: 1.80 there, 1.86 with 1.
MOVES_SRAM = 8
# Bytes of NRAM, in two buffers, through which a core moves what goes from SRAM to SRAM: at least (1.80 there, 2.37 with
# 1024), and at most.
LEAST_STAGED_BYTES, MOST_STAGED_BYTES = 256, 16384
# An input comes whole where loads read it so many times: borders that tiles share are no reason.  A block of Swin
# reads its input twice, for the windows and for the sum behind them: 1.29 instead of 1.00 times what is compulsory.
LEAST_READS = 1.5
# Share of all bytes of DRAM that part of a tensor must save by staying in SRAM: each of its copies becomes two, one of
# which goes through cores.  On `edge` in f16 a block of Llama moves 2.9 % less so in 1.1 % fewer cycles, a diffusion
# block with cross attention 5.8 % less in 1.3 % fewer; with 0.015 a block of Swin moves 1.8 % less, but in 2.5 % more
# cycles, and one of T5 1.7 % less in 1.2 % more.
HELD_PART_AT_LEAST = 0.025
# How much more of a tensor must stay as rows of all channels than as whole channels: each copy of such a part has more
# and shorter runs.  A block of shifted windows (swin_shift_14, f16 on `edge`) took 7 % more cycles for 0.1 % fewer
# bytes.
HELD_FINER = 1.1

# Shares of SRAM that units are planned for again where parts of tensors may take the rest, in networks of at most so
# many layers (`network/trials/parts_beside.py`): on `edge` in f16 squeeze_excite_160 moves 1.44 times what is
# compulsory so, 1.51 where the parts have what is left, and mbconv_se_112_b4 1.35, image by image, instead of 1.52.
SHARES_BESIDE = 0.75, 0.5625, 0.4375
MOST_BESIDE = 48
# Cycles of units alone may rise by this power of the factor by which bytes fall: of squeeze_excite_160 they rise by
# 5.8 % in the models for 4.2 % of the bytes, by 1.8 % on the machine.
BESIDE_SLOWER = 2
# Times the bytes without smaller tiles: where a plan moves more, none for even less SRAM is looked at.
BESIDE_HOPELESS = 1.05

# --- moves that are left out (passes/lower/load_parts.py, passes/lower/store_parts.py)

# Parts that a tensor may have, and copies that a store may become: each is one more copy for each tile, if an empty
# one.  Six maps beside each other before a convolution, on `default`: 27,034 cycles instead of 53,943.
MOST_PARTS = 8

# Steps of streamed attention (a block of keys with a piece of rows), of 26 instructions at most: what a program may run
# (2**24).  One head of 8192 x 128 in 512 KiB of `df` with f32 sums had 2.1 million steps, of pieces of 4 rows.
MOST_STEPS = 600_000
