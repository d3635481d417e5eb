'use strict';
// Draws the JSON of the page.  Names come from models: they only ever become text, never HTML.
const D = JSON.parse(document.getElementById('data').textContent), R = D.report;
const $ = id => document.getElementById(id);
const state = { unit: D.units.length ? D.units[0].name : '', layer: '', run: 0, step: 0, owner: 0, from: 0, to: 1, memory: '', place: '', sort: 'order', up: true };
const narrow = () => window.innerWidth < 800;

// --- words and elements ---
const count = n => Number(n).toLocaleString('en-US');
function size(n, most = n) { // with the prefix of the largest that stands beside it, and the base that the text has
  for (const [unit, least] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) if (most >= least) return (n / least).toFixed(3) + ' ' + unit;
  return n + ' B';
}
function energy(pj) {
  for (const [unit, least] of [['J', 1e12], ['mJ', 1e9], ['uJ', 1e6], ['nJ', 1e3]]) if (pj >= least) return (pj / least).toFixed(3) + ' ' + unit;
  return pj.toFixed(0) + ' pJ';
}
function el(name, facts = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(facts)) if (key === 'on') node.addEventListener('click', value); else node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function put(id, ...nodes) { $(id).replaceChildren(...nodes); }
function svg(width, height, label) {
  const node = shape(null, 'svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': label });
  return node;
}
function shape(parent, name, facts, tip, click) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in facts) node.setAttribute(key, typeof facts[key] === 'number' ? Math.round(facts[key] * 100) / 100 : facts[key]);
  if (tip) shape(node, 'title', {}).textContent = tip;
  if (click) { node.classList.add('hit'); node.addEventListener('click', click); }
  if (parent) parent.append(node);
  return node;
}
function text(parent, x, y, words, facts = {}) { const node = shape(parent, 'text', { x, y, ...facts }); node.textContent = words; return node; }
function short(words, most) { return words.length > most ? words.slice(0, most - 1) + '…' : words; }
const hue = new Map(D.units.map((unit, k) => [unit.name, (k * 137.5 + 210) % 360]));
const colour = (name, light = 52) => hue.has(name) ? `hsl(${hue.get(name)} 52% ${light}%)` : 'var(--soft)';
const unitOf = new Map(R.layers.map(layer => [layer.name, layer.unit]));

// --- host ---
const hosted = (R.host ? R.host.layers : []).map((layer, k) => ({ ...layer, kind: D.reasons[k] }));
function host() {
  const kinds = new Map();
  for (const layer of hosted) kinds.set(layer.kind, [...(kinds.get(layer.kind) || []), layer]);
  const rows = [...kinds].sort((a, b) => b[1].length - a[1].length).map(([why, found]) => [count(found.length), [...new Set(found.map(each => each.op))].join(', '), why, found.map(each => each.name).join(', ')]);
  $('host-p').textContent = D.runs.length ? `${hosted.length} of ${R.layers.length} layers run on the host.` : 'All layers run on the host: nothing runs on the device.';
  put('host-g', table(['layers', 'operators', 'why they are on the host', 'names'], rows, [0]));
  document.body.classList.toggle('has-host', hosted.length > 0);
  document.body.classList.toggle('host-only', !D.runs.length);
}

// --- headline ---
function cards() {
  const dram = R.dram, cycles = R.cycles, out = [];
  const add = (name, figure, more) => out.push(el('div', { class: 'card' }, el('span', {}, name), el('b', {}, figure), el('span', {}, more)));
  if (cycles) add('Time', (1e3 * cycles.total / R.clock_hz).toPrecision(3) + ' ms', count(cycles.total) + ' cycles' + (cycles.bound ? `, ${(cycles.total / cycles.bound).toFixed(3)} × the bound of ${count(cycles.bound)} (${cycles.bound_by})` : ''));
  if (hosted.length) add('Host', `${hosted.length} of ${R.layers.length} layers`, `${count(R.host.cycles || 0)} cycles to compute, ${size(R.host.moved_bytes)} over the link`);
  const moved = dram.total_bytes - dram.other_bytes, beside = n => size(n, Math.max(dram.total_bytes, dram.compulsory_bytes, dram.layer_by_layer_bytes || 0));
  if (D.runs.length) add('DRAM', beside(dram.total_bytes), dram.total_ratio ? `${dram.total_ratio.toFixed(3)} × the compulsory ${beside(dram.compulsory_bytes)}` : '');
  if (dram.ratio) add('Without code and tables', beside(moved), `${dram.ratio.toFixed(3)} × the compulsory ${beside(dram.compulsory_bytes)}` + (dram.bound_bytes ? `, ${(moved / dram.bound_bytes).toFixed(3)} × the ${beside(dram.bound_bytes)} that any plan moves (${dram.bound_by})` : ''));
  if (dram.layer_by_layer_bytes) add('Layer by layer', beside(dram.layer_by_layer_bytes), (moved ? `${(dram.layer_by_layer_bytes / moved).toFixed(3)} × the ${beside(moved)} without code and tables; ` : '') + `${dram.maps - dram.maps_in_dram} of ${dram.maps} maps stay on chip`);
  if (R.energy_pj.total) add('Energy', energy(R.energy_pj.total), `${(100 * R.energy_pj.dram / R.energy_pj.total).toFixed(0)} % of it in DRAM`);
  if (D.runs.length) {
    add('Units', String(D.units.length), `${R.layers.length} layers` + (hosted.length ? `, ${hosted.length} on the host` : ''));
    const sram = D.runs[0].capacities.sram;
    add('Peak SRAM', size(R.peak_bytes.sram, sram), 'of ' + size(sram));
  }
  if (R.check && R.check.max_rel_error === null) add('Check', '-', R.check.reference);
  else if (R.check) add('Check', R.check.max_rel_error.toExponential(1), 'relative error against ' + R.check.reference);
  put('cards', ...out);
  $('title').textContent = R.model;
  document.title = `${R.model}: Frustum`;
  $('subtitle').textContent = `on ${R.target_file || R.target}, ${R.dtype}, policy ${R.policy}` + (R.hashes && R.hashes.model ? `, model ${R.hashes.model.slice(0, 12)}` : '');
  $('text').textContent = D.text;
}

// --- DRAM ---
const CLASSES = [['weights', 'weight_bytes', 262], ['inputs', 'input_bytes', 200], ['outputs', 'output_bytes', 150], ['maps', 'intermediate_bytes', 25], ['code', 'other_bytes', 330]];
function bytes() {
  const dram = R.dram, bars = [];
  if (dram.layer_by_layer_bytes) bars.push(['layer by layer', [['layer by layer', dram.layer_by_layer_bytes, 'var(--bad)']]]);
  bars.push(['as run', CLASSES.map(([name, key, h]) => [name, dram[key], `hsl(${h} 45% 52%)`])]);
  if (dram.bound_bytes) bars.push(['bound', [['bound: ' + dram.bound_by, dram.bound_bytes, 'var(--kept)']]]);
  const width = narrow() ? 360 : 640, left = 92, most = Math.max(1, ...bars.map(bar => bar[1].reduce((sum, part) => sum + part[1], 0)));
  const units = [...D.units].sort((a, b) => b.dram_bytes - a.dram_bytes).slice(0, 8), height = 44 + bars.length * 34 + 34 + units.length * 22;
  const s = svg(width, height, 'DRAM bytes: ' + bars.map(bar => `${bar[0]} ${size(bar[1].reduce((sum, part) => sum + part[1], 0))}`).join(', '));
  const scale = (width - left - 76) / most;
  let y = 6;
  for (const [name, parts] of bars) {
    let x = left, total = 0;
    text(s, left - 8, y + 17, name, { 'text-anchor': 'end' });
    for (const [what, amount, fill] of parts) {
      if (amount) shape(s, 'rect', { x, y, width: Math.max(0.6, amount * scale), height: 24, style: `fill:${fill}` }, `${what}: ${count(amount)} bytes`);
      x += amount * scale; total += amount;
    }
    text(s, x + 6, y + 17, size(total));
    y += 34;
  }
  let x = left;
  for (const [name, key, h] of CLASSES) if (dram[key]) {
    if (x > width - 70) { x = left; y += 14; }
    shape(s, 'rect', { x, y, width: 10, height: 10, style: `fill:hsl(${h} 45% 52%)` });
    x += 20 + text(s, x + 14, y + 9, name, { class: 'soft' }).textContent.length * 7.4;
  }
  y += 40;
  text(s, 0, y - 8, 'Units that move most', { class: 'soft' });
  const unitMost = Math.max(1, ...units.map(unit => unit.dram_bytes));
  for (const unit of units) {
    const on = unit.name === state.unit;
    text(s, left - 8, y + 12, short(unit.name, 12), { 'text-anchor': 'end', 'font-weight': on ? 700 : 400 });
    shape(s, 'rect', { x: left, y, width: Math.max(0.6, unit.dram_bytes / unitMost * (width - left - 76)), height: 15, style: `fill:${colour(unit.name)}` }, `${unit.name}: ${count(unit.dram_bytes)} bytes`, () => choose(unit.name));
    text(s, left + unit.dram_bytes / unitMost * (width - left - 76) + 6, y + 12, size(unit.dram_bytes));
    y += 22;
  }
  $('bytes-p').textContent = dram.maps ? `${dram.maps - dram.maps_in_dram} of ${dram.maps} maps stay on chip.` : '';
  put('bytes-g', s);
}

// --- roofline ---
function roofline() {
  if (!D.runs.length) return;
  const width = narrow() ? 360 : 640, height = 360, top = 12, right = width - 14, bottom = height - 40;
  const peak = D.peaks.macs_per_cycle, band = D.peaks.bytes_per_cycle;
  const points = D.units.filter(unit => unit.macs && unit.dram_bytes && unit.cycles)
    .map(unit => ({ unit, x: unit.macs / unit.dram_bytes, y: unit.macs / unit.cycles, bound: unit.bound_cycles ? unit.macs / unit.bound_cycles : 0 }))
    .sort((a, b) => (a.unit.name === state.unit) - (b.unit.name === state.unit)); // the chosen one on top
  const s = svg(width, height, `Roofline of ${points.length} units; peak ${count(peak)} products a cycle, ${band} bytes a cycle`);
  const low = v => Math.floor(Math.log10(Math.min(...v))), high = v => Math.ceil(Math.log10(Math.max(...v)));
  const xs = [peak / band / 10, peak / band * 10, ...points.map(p => p.x)], ys = [peak * 1.3, peak / 10, ...points.map(p => p.y)];
  const [x0, x1, y0, y1] = [low(xs), high(xs), low(ys), Math.max(high(ys), low(ys) + 1)], left = 28 + 7 * count(10 ** y1).length; // beside the widest number
  const X = v => left + (Math.log10(v) - x0) / (x1 - x0) * (right - left), Y = v => bottom - (Math.log10(v) - y0) / (y1 - y0) * (bottom - top);
  for (let e = x0; e <= x1; e++) { shape(s, 'line', { x1: X(10 ** e), x2: X(10 ** e), y1: top, y2: bottom, class: 'grid-line' }); text(s, X(10 ** e), bottom + 15, count(10 ** e), { 'text-anchor': e === x1 ? 'end' : 'middle', class: 'soft' }); }
  for (let e = y0; e <= y1; e++) { shape(s, 'line', { x1: left, x2: right, y1: Y(10 ** e), y2: Y(10 ** e), class: 'grid-line' }); text(s, left - 6, Y(10 ** e) + 4, count(10 ** e), { 'text-anchor': 'end', class: 'soft' }); }
  text(s, (left + right) / 2, height - 6, 'products for each byte at the DRAM port', { 'text-anchor': 'middle', class: 'soft' });
  text(s, 12, (top + bottom) / 2, 'products a cycle', { 'text-anchor': 'middle', class: 'soft', transform: `rotate(-90 12 ${(top + bottom) / 2})` });
  const knee = peak / band, start = Math.max(10 ** x0, 10 ** y0 / band);
  shape(s, 'polyline', { points: [[X(start), Y(start * band)], [X(knee), Y(peak)], [right, Y(peak)]].map(p => p.map(v => v.toFixed(1)).join()).join(' '), style: 'fill:none;stroke:var(--ink);stroke-width:2' });
  for (const p of points) {
    const on = p.unit.name === state.unit, fill = colour(p.unit.name), tip = `${p.unit.name}: ${p.y.toFixed(0)} products a cycle, ${p.x.toFixed(1)} for each byte; bound ${p.bound.toFixed(0)}`;
    if (p.bound) {
      shape(s, 'line', { x1: X(p.x), x2: X(p.x), y1: Y(p.y), y2: Math.max(top, Y(p.bound)), style: `stroke:${fill};stroke-dasharray:2 3` });
      if (Y(p.bound) >= top) shape(s, 'circle', { cx: X(p.x), cy: Y(p.bound), r: 4, style: `fill:none;stroke:${fill};stroke-width:1.5` }, tip);
    }
    shape(s, 'circle', { cx: X(p.x), cy: Y(p.y), r: on ? 8 : 5, style: `fill:${fill};stroke:var(--${on ? 'ink' : 'card'});stroke-width:${on ? 2 : 1}` }, tip, () => choose(p.unit.name));
    if (on) text(s, X(p.x) + (X(p.x) > right - 60 ? -12 : 12), Y(p.y) + 4, p.unit.name, { 'font-weight': 700, 'text-anchor': X(p.x) > right - 60 ? 'end' : 'start' });
  }
  put('roof-g', s);
}

// --- graph and units ---
function graph() {
  const width = narrow() ? 360 : 760, row = 20, place = new Map(R.layers.map((layer, k) => [layer.name, k]));
  const s = svg(width, R.layers.length * row + 8, `${R.layers.length} layers and ${D.units.length} units`), left = narrow() ? 60 : 110, box = left + (narrow() ? 190 : 400);
  for (const [from, to] of D.graph) {
    if (!place.has(from) || !place.has(to)) continue;
    const a = place.get(from) * row + 13, b = place.get(to) * row + 9, far = Math.abs(place.get(to) - place.get(from)), on = [from, to].includes(state.layer);
    const bend = Math.min(left - 16, 8 + far * 5);
    shape(s, 'path', { d: far === 1 ? `M${left} ${a - 2}V${b}` : `M${left} ${a}C${left - bend * 1.3} ${a} ${left - bend * 1.3} ${b} ${left} ${b}`, style: `fill:none;stroke:var(--${on ? 'again' : 'soft'});stroke-width:${on ? 2.5 : 1}` });
  }
  R.layers.forEach((layer, k) => {
    const y = k * row, on = layer.unit === state.unit;
    if (on) shape(s, 'rect', { x: left + 8, y: y + 1, width: box - left - 12, height: row - 1, style: 'fill:var(--mark)' });
    shape(s, 'circle', { cx: left, cy: y + 11, r: 3.5, style: `fill:${colour(layer.unit)}` });
    text(s, left + 12, y + 15, short(`${layer.name}  ${layer.op}`, narrow() ? 26 : 54), { 'font-weight': layer.name === state.layer ? 700 : 400 }).addEventListener('click', () => pick(layer.name));
    shape(s, 'rect', { x: box, y: y + (k && R.layers[k - 1].unit === layer.unit ? 0 : 2), width: 14, height: row - (k && R.layers[k - 1].unit === layer.unit ? 0 : 2), style: `fill:${colour(layer.unit)}` }, layer.unit || 'host', () => layer.unit && choose(layer.unit));
    if (!k || R.layers[k - 1].unit !== layer.unit) text(s, box + 22, y + 15, short(layer.unit || layer.where, narrow() ? 12 : 34), { 'font-weight': on ? 700 : 400 }).addEventListener('click', () => layer.unit && choose(layer.unit));
  });
  put('graph-g', s);
  const unit = D.units.find(each => each.name === state.unit);
  if (!unit) return put('unit-g');
  const rows = [['layers', unit.layers.length === 1 ? unit.layers[0] : `${unit.layers[0]} .. ${unit.layers[unit.layers.length - 1]} (${unit.layers.length})`],
    ['tiles', `${unit.tiles}, by ${unit.owners}, ${unit.mode}`], ['why it ends', unit.stopped_by || 'the network ends'], ['cycles', count(unit.cycles) + ' of the critical path'],
    ['bound', unit.bound_cycles == null ? '-' : count(unit.bound_cycles)], ['DRAM', count(unit.dram_bytes) + ' bytes'], ['products', count(unit.macs)],
    ['time goes to', unit.waits.map(wait => `${wait.engine} ${wait.for}${wait.on ? ' on ' + wait.on : ''}: ${count(wait.cycles)}`).join('; ') || '-']];
  put('unit-g', el('h3', {}, 'Unit ' + unit.name), el('dl', {}, ...rows.flatMap(([a, b]) => [el('dt', {}, a), el('dd', {}, b)])));
}

// --- frustum ---
function frustumOf() {
  const run = D.runs[state.run], number = run ? run.units.indexOf(state.unit) : -1;
  return run && run.frustums[number];
}
function stepControls() {
  const found = frustumOf();
  state.step = 0; state.owner = 0;
  $('step').max = found ? Math.max(0, found.drawn - 1) : 0; $('step').value = 0;
  $('step').disabled = !found || found.drawn < 2;
  put('owner', ...Array.from({ length: found ? found.owners : 1 }, (_, k) => el('option', { value: k }, String(k))));
}
function frustum() {
  const found = frustumOf();
  $('step-v').textContent = found ? `${state.step + 1} of ${found.drawn}` : '';
  if (!found) { $('fr-p').textContent = 'No engine of a core computes for this unit.'; return put('fr-g'); }
  const names = D.runs[state.run].layers, width = narrow() ? 360 : 900, centre = narrow() ? 140 : 400, gap = narrow() ? 74 : 84;
  const most = Math.max(1, ...found.layers.map(layer => Math.max(layer.rows, layer.cols))), half = narrow() ? 110 : 250;
  const height = (found.layers.length - 1) * gap + half * 0.62 + 16;
  $('fr-p').textContent = `${found.steps} step${found.steps === 1 ? '' : 's'}` + (found.drawn < found.steps ? `, of which the first ${found.drawn} are drawn` : '') + '; rows to the left, columns to the right; the last layer on top.';
  const s = svg(width, height, `Step ${state.step + 1} of unit ${state.unit} through ${found.layers.length} layers`);
  const shown = layer => Math.max(0.16, Math.sqrt(Math.max(layer.rows, layer.cols) / most));
  const reads = new Map();
  found.layers.forEach(layer => { const by = names[layer.layer]; for (const [from, to] of D.graph) if (to === by) { if (!reads.has(from)) reads.set(from, []); reads.get(from).push(layer); } });
  const ordered = [...found.layers];
  let above = null;
  const planes = ordered.map((layer, k) => {
    const scale = half * shown(layer) / Math.max(layer.rows, layer.cols, 1), base = half * 0.31 + (ordered.length - 1 - k) * gap;
    const P = (r, c) => [centre + ((c - layer.cols / 2) - (r - layer.rows / 2)) * scale, base + ((c - layer.cols / 2) + (r - layer.rows / 2)) * scale * 0.3];
    return { layer, P };
  });
  const quad = (P, [a, b, c, d]) => [P(a, c), P(a, d), P(b, d), P(b, c)];
  const points = corners => corners.map(p => p.map(v => v.toFixed(1)).join()).join(' ');
  const draw = (plane, box, style, tip) => shape(s, 'polygon', { points: points(quad(plane.P, box)), style }, tip);
  const words = ([a, b, c, d]) => `rows ${a} to ${b - 1}, columns ${c} to ${d - 1}`;
  planes.forEach(plane => {
    const { layer } = plane, name = names[layer.layer];
    draw(plane, [0, layer.rows, 0, layer.cols], 'fill:var(--plane);stroke:var(--soft);fill-opacity:.85', `${name}: ${layer.rows} x ${layer.cols}`);
    layer.pieces.filter(piece => piece[0] < state.step).slice(-64).forEach(piece => draw(plane, piece[2], 'fill:var(--done);stroke:none'));
    const mine = layer.pieces.find(piece => piece[0] === state.step && piece[1] === state.owner);
    for (const reader of reads.get(name) || []) {
      const read = reader.pieces.find(piece => piece[0] === state.step && piece[1] === state.owner);
      if (read && read[3][1] > 0 && read[3][1] <= layer.rows && read[3][3] <= layer.cols) draw(plane, read[3], 'fill:var(--kept);fill-opacity:.8;stroke:var(--ink);stroke-width:.6', `${names[reader.layer]} reads ${words(read[3])}`);
    }
    if (mine) {
      draw(plane, mine[2], 'fill:var(--made);fill-opacity:.85;stroke:var(--ink);stroke-width:.8', `${name} makes ${words(mine[2])}`);
      mine[4].forEach(again => draw(plane, again, 'fill:var(--again);stroke:none', `made before: ${words(again)}`));
      if (above && above.mine) quad(plane.P, mine[2]).forEach((corner, k) => { const other = quad(above.plane.P, above.mine[2])[k]; shape(s, 'line', { x1: corner[0], y1: corner[1], x2: other[0], y2: other[1], style: 'stroke:var(--soft);stroke-dasharray:3 3' }); });
    }
    const right = plane.P(0, layer.cols)[0] + 10, y = plane.P(layer.rows / 2, layer.cols / 2)[1], x = Math.min(right, narrow() ? 215 : 660);
    text(s, x, y - (narrow() ? 4 : 0), short(name, narrow() ? 20 : 34), { 'font-weight': 600 });
    text(s, x, y + 14, mine ? `${mine[2][1] - mine[2][0]} x ${mine[2][3] - mine[2][2]} of ${layer.rows} x ${layer.cols}` : `nothing, of ${layer.rows} x ${layer.cols}`, { class: 'soft' });
    above = { plane, mine };
  });
  put('fr-g', s);
}

// --- engines over time ---
function axis(s, left, right, y, from, to) {
  const ideal = (to - from) / (narrow() ? 3 : 7), base = 10 ** Math.floor(Math.log10(Math.max(1, ideal))), every = [1, 2, 5, 10].map(k => k * base).find(k => k >= ideal) || base;
  for (let at = Math.ceil(from / every) * every; at <= to; at += every) {
    const x = left + (at - from) / (to - from) * (right - left);
    shape(s, 'line', { x1: x, x2: x, y1: 0, y2: y, class: 'grid-line' });
    text(s, x, y + 14, count(Math.round(at)), { 'text-anchor': x > right - 30 ? 'end' : 'middle', class: 'soft' });
  }
}
function time() {
  const run = D.runs[state.run];
  if (!run) return;
  const engines = run.gantt.filter(each => !state.place || each.name.split('.')[0] === state.place);
  const width = narrow() ? 360 : 1320, left = narrow() ? 92 : 170, right = width - 6, row = 22, from = state.from * run.total, to = state.to * run.total;
  const s = svg(width, engines.length * row + 24, `What ${engines.length} engines do from cycle ${count(Math.round(from))} to ${count(Math.round(to))}`);
  axis(s, left, right, engines.length * row, from, to);
  const X = at => left + (Math.min(Math.max(at, from), to) - from) / (to - from) * (right - left);
  engines.forEach((engine, k) => {
    const y = k * row + 3;
    text(s, left - 8, y + 13, narrow() ? engine.name.replace('cluster', 'c').replace('core', 'k') : engine.name, { 'text-anchor': 'end' });
    let at = 0, open = null;
    const flush = () => { if (open) shape(s, 'rect', { x: X(open.start), y, width: Math.max(0.7, X(open.end) - X(open.start)), height: row - 6, style: `fill:${colour(open.unit)};fill-opacity:${(0.35 + 0.65 * Math.min(1, open.busy / Math.max(1, open.end - open.start))).toFixed(2)}` },
      `${engine.name}: ${open.unit || 'start'}${open.layer ? ', ' + open.layer : ''}; cycles ${count(open.start)} to ${count(open.end)}, busy ${count(open.busy)}`, (name => () => name && choose(name))(open.unit)); open = null; };
    for (const [away, length, busy, unit, layer] of engine.segments) {
      const start = at + away, end = start + length;
      at = end;
      if (end < from || start > to) continue;
      const name = run.units[unit] || '';
      // the coarser level: what falls into one pixel is one rectangle
      if (open && open.unit === name && X(start) - X(open.end) < 1) { open.end = end; open.busy += busy; } else { flush(); open = { start, end, busy, unit: name, layer: run.layers[layer] }; }
    }
    flush();
  });
  put('time-g', s);
  const causes = engines.flatMap(engine => engine.causes.map(([why, who, unit, cycles]) => [engine.name, count(engine.busy), why, who, run.units[unit] || '', count(cycles)]));
  put('cause-g', table(['engine', 'busy', 'idle because of', 'of engine', 'of unit', 'cycles'], causes, [1, 5]));
}
function table(heads, rows, numbers) {
  const cls = k => numbers.includes(k) ? 'n' : '';
  return el('table', {}, el('thead', {}, el('tr', {}, ...heads.map((head, k) => el('th', { class: 'plain ' + cls(k), scope: 'col' }, head)))),
    el('tbody', {}, ...rows.map(row => el('tr', {}, ...row.map((cell, k) => el('td', { class: cls(k) }, cell))))));
}
function zoom(by, shift) {
  const span = Math.min(1, Math.max(0.002, (state.to - state.from) * by)), middle = (state.from + state.to) / 2 + shift * span;
  state.from = Math.min(1 - span, Math.max(0, middle - span / 2)); state.to = state.from + span;
  time(); memory();
}
function toUnit() {
  const run = D.runs[state.run], number = run ? run.units.indexOf(state.unit) : -1;
  if (number < 0) return;
  let first = Infinity, last = 0;
  for (const engine of run.gantt) { let at = 0; for (const [away, length, , unit] of engine.segments) { if (unit === number) { first = Math.min(first, at + away); last = Math.max(last, at + away + length); } at += away + length; } }
  if (last > first) { const edge = (last - first) * 0.03; state.from = Math.max(0, (first - edge) / run.total); state.to = Math.min(1, (last + edge) / run.total); time(); memory(); }
}

// --- memory ---
function memoryChoices() {
  const run = D.runs[state.run];
  if (!run) return;
  const names = [...new Set(run.buffers.map(each => `${each[0]} ${each[1]}`))].sort((a, b) => ['sram', 'nram', 'wram'].indexOf(a.split(' ')[0]) - ['sram', 'nram', 'wram'].indexOf(b.split(' ')[0]) || a.split(' ')[1] - b.split(' ')[1]);
  put('mem', ...names.map(name => { const [kind, place] = name.split(' '); return el('option', { value: name }, `${kind.toUpperCase()} of ${kind === 'sram' ? 'cluster' : 'core'} ${place}`); }));
  state.memory = names[0] || '';
  const places = [...new Set(run.gantt.map(each => each.name.split('.')[0]))];
  put('place', ...places.map(place => el('option', { value: place }, place)), el('option', { value: '' }, 'all'));
  state.place = run.gantt.length > 24 ? places[0] : '';
  $('place').value = state.place;
}
function memory() {
  const run = D.runs[state.run];
  if (!run) return;
  const [kind, place] = state.memory.split(' '), mine = run.buffers.filter(each => each[0] === kind && each[1] === Number(place));
  const width = narrow() ? 360 : 1320, height = 340, left = narrow() ? 60 : 90, right = width - 6, bottom = height - 24, from = state.from * run.total, to = state.to * run.total;
  const capacity = run.capacities[kind] || 1, used = Math.max(1, ...mine.map(each => each[2] + each[3])), top = Math.min(capacity, used * 1.08);
  const s = svg(width, height, `${mine.length} buffers in ${state.memory}`);
  axis(s, left, right, bottom, from, to);
  for (let k = 0; k <= 4; k++) { const y = bottom - k / 4 * (bottom - 8); shape(s, 'line', { x1: left, x2: right, y1: y, y2: y, class: 'grid-line' }); text(s, left - 6, y + 4, size(Math.round(top * k / 4)), { 'text-anchor': 'end', class: 'soft' }); }
  const X = at => left + (Math.min(Math.max(at, from), to) - from) / (to - from) * (right - left), Y = a => bottom - a / top * (bottom - 8);
  for (const [, , address, bytes, start, length, layer, unit] of mine) {
    if (start + length < from || start > to) continue;
    const name = run.units[unit] || '', on = name === state.unit;
    shape(s, 'rect', { x: X(start), y: Y(address + bytes), width: Math.max(0.6, X(start + length) - X(start)), height: Math.max(0.6, Y(address) - Y(address + bytes)), style: `fill:${colour(name)};fill-opacity:${on ? 0.95 : 0.5};stroke:var(--${on ? 'ink' : 'card'});stroke-width:${on ? 0.8 : 0.4}` },
      `${run.layers[layer] || ''} of ${name}: addresses ${count(address)} to ${count(address + bytes)}, cycles ${count(start)} to ${count(start + length)}`, () => name && choose(name));
  }
  $('mem-p').textContent = `${mine.length} buffers, up to ${size(used)} of ${size(capacity)}; from the first write to the last read.` + (run.buffers_left_out ? ` The ${run.buffers_left_out} smallest of all memories are left out.` : '');
  put('mem-g', s);
}

// --- layers ---
const COLUMNS = [['order', '#', true], ['name', 'name'], ['op', 'operation'], ['unit', 'unit'], ['where', 'where'], ['cycles', 'cycles', true], ['dram_bytes', 'DRAM bytes', true]];
const LAYERS = R.layers.map((layer, k) => ({ order: k, ...layer, op: layer.op + (layer.nodes ? ` (${layer.nodes.join(', ')})` : ''), unit: layer.unit || '' }));
function layers() {
  const asked = $('search').value.trim().toLowerCase(), key = state.sort, way = state.up ? 1 : -1;
  const rows = LAYERS.filter(layer => !asked || `${layer.name} ${layer.op} ${layer.unit} ${layer.where}`.toLowerCase().includes(asked))
    .sort((a, b) => way * (typeof a[key] === 'number' && typeof b[key] === 'number' ? a[key] - b[key] : String(a[key]).localeCompare(String(b[key]), 'en', { numeric: true })) || a.order - b.order);
  $('lay-n').textContent = `${rows.length} of ${LAYERS.length}`;
  const head = el('tr', {}, ...COLUMNS.map(([name, words, number]) => el('th', { scope: 'col', class: number ? 'n' : '', 'aria-sort': name === key ? (state.up ? 'ascending' : 'descending') : 'none' },
    el('button', { on: () => { state.up = name === state.sort ? !state.up : !number || name === 'order'; state.sort = name; layers(); document.querySelectorAll('#lay-t th button')[COLUMNS.findIndex(each => each[0] === name)].focus(); } }, words + (name === key ? (state.up ? ' ▲' : ' ▼') : '')))));
  put('lay-t', el('thead', {}, head), el('tbody', {}, ...rows.map(layer => el('tr', { class: layer.name === state.layer ? 'on' : '' },
    ...COLUMNS.map(([name, , number]) => el('td', { class: number ? 'n' : '' }, name === 'name' ? el('button', { on: () => pick(layer.name), 'data-layer': layer.name }, layer.name) : number ? count(name === 'order' ? layer.order + 1 : layer[name] ?? 0) : layer[name]))))));
  ir();
}
function ir() {
  if (!D.ir.length) return put('ir', el('p', {}, 'Choose a layer. With --dump-ir DIR its IR at every stop stands here.'));
  if (!state.layer) return put('ir', el('p', {}, 'Choose a layer to see its IR at every stop.'));
  const found = D.ir.filter(stop => stop.lines[state.layer]);
  put('ir', el('h3', {}, state.layer), ...(found.length ? found.flatMap(stop => [el('h3', {}, stop.stop),
    el('pre', { tabindex: '0', role: 'region', 'aria-label': `${state.layer} in ${stop.stop}` }, stop.lines[state.layer].map(([line, words]) => `${line}: ${words}`).join('\n'))]) : [el('p', {}, 'No line of a stop is located at this layer.')]));
}

// --- what is chosen ---
function pick(layer, region) {
  state.layer = layer;
  if (unitOf.get(layer)) choose(unitOf.get(layer)); else { graph(); layers(); }
  const back = region || [...document.querySelectorAll('#lay-t td button')].find(each => each.dataset.layer === layer);
  if (back) back.focus({ preventScroll: true });
}
function walk(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key], region = $('graph-g'), names = R.layers.map(layer => layer.name);
  if (!by || !names.length) return;
  event.preventDefault();
  const at = names.indexOf(state.layer), here = at < 0 ? names.findIndex(name => unitOf.get(name) === state.unit) : at + by;
  const next = Math.min(names.length - 1, Math.max(0, here));
  pick(names[next], region);
  region.scrollTop = (next + 0.5) / names.length * region.scrollHeight - region.clientHeight / 2;
}
function choose(name) {
  const is = D.units.findIndex(unit => unit.name === name);
  if (is < 0) return;
  state.unit = name; $('unit').value = name;
  if (unitOf.get(state.layer) !== name) state.layer = '';
  const home = D.runs.findIndex(run => run.units.includes(name));
  if (home >= 0 && home !== state.run) { state.run = home; $('run').value = home; memoryChoices(); }
  history.replaceState(null, '', '#unit=' + encodeURIComponent(name));
  stepControls(); all();
}
function all() {
  const unit = D.units.find(each => each.name === state.unit);
  $('said').textContent = unit ? `${unit.layers.length} layers, ${count(unit.cycles)} cycles, ${size(unit.dram_bytes)}` : '';
  bytes(); roofline(); graph(); frustum(); time(); memory(); layers();
}

// --- plans as trees ---
function curves() {
  $('curve').hidden = !D.curves.length;
  put('curve-g', ...D.curves.map(each => el('figure', {}, el('img', { src: 'data:image/svg+xml,' + encodeURIComponent(each.svg), alt: `DRAM bytes of ${each.name} against SRAM`, style: 'max-width:100%' }), el('figcaption', {}, each.name))));
}

function main() {
  cards(); host(); curves();
  put('unit', ...D.units.map(unit => el('option', { value: unit.name }, short(`${unit.name}: ${unit.layers[0]}${unit.layers.length > 1 ? ' .. ' + unit.layers[unit.layers.length - 1] : ''}`, 70))));
  put('run', ...D.runs.map((run, k) => el('option', { value: k }, run.name)));
  document.body.classList.toggle('has-many', D.runs.length > 1);
  $('unit').onchange = () => choose($('unit').value);
  $('run').onchange = () => { state.run = Number($('run').value); state.unit = D.runs[state.run].units[0] || state.unit; memoryChoices(); choose(state.unit); };
  $('step').oninput = () => { state.step = Number($('step').value); frustum(); };
  $('owner').onchange = () => { state.owner = Number($('owner').value); frustum(); };
  $('place').onchange = () => { state.place = $('place').value; time(); };
  $('mem').onchange = () => { state.memory = $('mem').value; memory(); };
  $('search').oninput = layers;
  $('graph-g').onkeydown = walk;
  for (const [id, by, shift] of [['z-in', 0.5, 0], ['z-out', 2, 0], ['z-left', 1, -0.4], ['z-right', 1, 0.4]]) $(id).onclick = () => zoom(by, shift);
  $('z-all').onclick = () => { state.from = 0; state.to = 1; time(); memory(); };
  $('z-unit').onclick = toUnit;
  memoryChoices();
  const asked = decodeURIComponent((location.hash.match(/^#unit=(.+)/) || [])[1] || '');
  const first = D.units.find(unit => unit.name === asked) || D.units.find(unit => unit.layers.length > 1) || D.units[0];
  if (first) { state.unit = first.name; $('unit').value = first.name; const home = D.runs.findIndex(run => run.units.includes(first.name)); state.run = Math.max(0, home); $('run').value = state.run; memoryChoices(); }
  stepControls(); all();
  let was = narrow();
  window.onresize = () => { if (was !== narrow()) { was = narrow(); all(); } };
  document.body.dataset.ready = '1';
}
main();
