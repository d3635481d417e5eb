'use strict';
// Runs the script of a page on a document of stubs, and prints what the elements asked for hold.
const fs = require('fs');
const page = fs.readFileSync(process.argv[2], 'utf8');
const data = page.split('id="data">')[1].split('</script>')[0], script = page.split('<script>')[1].split('</script>')[0];
function element(name) {
  const classes = new Set();
  return {
    name, children: [], facts: {}, dataset: {}, style: {}, textContent: '', value: '',
    classList: { add: word => classes.add(word), toggle: (word, on) => on ? classes.add(word) : classes.delete(word), has: word => classes.has(word) },
    append(...nodes) { this.children.push(...nodes); }, replaceChildren(...nodes) { this.children = nodes; },
    setAttribute(key, value) { if (/NaN|Infinity|undefined/.test(String(value))) throw new Error(`${name} ${key}=${value}`); this.facts[key] = value; },
    addEventListener() {}, querySelectorAll: () => [], focus() {}, scrollTop: 0,
    words() { return this.textContent + this.children.map(each => typeof each === 'string' ? each : each.words()).join(' '); },
  };
}
const ids = new Map([...page.matchAll(/ id="([^"]+)"/g)].map(found => [found[1], element(found[1])]));
ids.get('data').textContent = data;
const document = {
  getElementById: id => { if (!ids.has(id)) throw new Error(`no element '${id}'`); return ids.get(id); },
  createElement: element, createElementNS: (_, name) => element(name), querySelectorAll: () => [], body: element('body'),
};
const window = { innerWidth: 1200 }, location = { hash: '' }, history = { replaceState() {} };
new Function('document', 'window', 'location', 'history', script)(document, window, location, history);
const asked = Object.fromEntries(process.argv.slice(3).map(id => [id, ids.get(id).words()]));
console.log(JSON.stringify({ ready: document.body.dataset.ready, hostOnly: document.body.classList.has('host-only'), hasHost: document.body.classList.has('has-host'), ...asked }));
