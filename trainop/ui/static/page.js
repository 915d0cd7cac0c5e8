'use strict';
// All texts of the cluster become text nodes: nothing here makes HTML of them, and the policy of the page forbids it.
(() => {
const ROW = 18, MAX_LINES = 200000, DROP = 20000, SILENCE = 45000, SVG = 'http://www.w3.org/2000/svg';
const $ = (id) => document.getElementById(id);
const el = (tag, props, ...children) => {
  const made = document.createElement(tag);
  Object.assign(made, props);
  made.append(...children.map((c) => (c instanceof Node ? c : String(c))));
  return made;
};
const svg = (tag, attributes, text) => {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
};
const span = (s) => s >= 7200 ? `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`
  : s >= 120 ? `${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${Math.round(s * 10) / 10} s`;
const STATES = new Set(['Running', 'Created', 'Succeeded', 'Failed', 'Restarting', 'Suspended', 'Pending', 'Queued', 'Deleted', 'Warning']);
const tone = (state) => STATES.has(state) ? state : '';
const part = (name) => new URLSearchParams(location.hash.slice(1)).get(name) || '';
const query = (values) => new URLSearchParams(Object.entries(values).filter((each) => each[1])).toString();
const link = (job, ns = part('ns')) => `#${query({ token: part('token'), ns, job })}`;
// Behind a proxy there is no token here: the proxy adds it. The other header is one that no other site can send. All
// addresses are relative, so that the page can be in a folder of a site. Proxies send who asks for a document to their
// login, and answer who asks for JSON.
const get = (path, values, more = {}) => fetch(`${path}?${query({ namespace: part('ns'), ...values })}`, {
  redirect: 'manual', ...more,
  headers: { 'X-Trainop': 'page', Accept: 'application/json, text/event-stream', ...(part('token') ? { Authorization: `Bearer ${part('token')}` } : {}), ...more.headers },
});
async function refusal(answer) {
  const said = (await answer.json().catch(() => ({}))).error;
  const left = !said && (answer.type === 'opaqueredirect' || answer.status === 401 || answer.status === 403);
  if (left || answer.status === 401) login();
  return said || (left ? 'you are not logged in any more' : `answer ${answer.status}`);
}

let jobs = [], shown = null, where = '', lastId = '', feed = '', first = '', abort = null, drawn = '';

// The stream: one for a tab that is seen, as browsers allow few to one server. It goes on where it ended.
async function follow() {
  if (abort) abort.abort();
  if (document.hidden) return say('paused', '');
  const mine = abort = new AbortController();
  for (let wait = 250; !mine.signal.aborted; wait = Math.min(wait * 2, 5000)) {
    // A network that is gone often says nothing. The server says something every 15 s.
    const attempt = new AbortController();
    let timer = 0;
    const heard = () => { clearTimeout(timer); timer = setTimeout(() => attempt.abort(new Error('nothing was heard for 45 s')), SILENCE); };
    try {
      heard();
      mine.signal.addEventListener('abort', () => attempt.abort(), { signal: attempt.signal });
      const answer = await get('events', { job: shown }, { headers: lastId ? { 'Last-Event-ID': lastId } : {}, signal: attempt.signal });
      if (!answer.ok) throw new Error(await refusal(answer));
      say('live', 'live');
      $('login').hidden = true;
      wait = 250;
      await read(answer.body.getReader(), mine, heard);
    } catch (error) {
      if (mine.signal.aborted) return;
      say(`not connected: ${error.message}`, 'lost');
    } finally {
      clearTimeout(timer);
      attempt.abort();
    }
    await new Promise((done) => setTimeout(done, wait));
  }
}
async function read(reader, mine, heard) {
  const decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done || mine.signal.aborted) return;
    heard();
    const events = (rest + decoder.decode(value, { stream: true })).split('\n\n');
    rest = events.pop();
    for (const event of events) take(event);
    if (rest.length > 64e6) throw new Error('an event without an end');
  }
}
function take(event) {
  let name = '', data = '', id = '';
  for (const line of event.split('\n')) {
    if (line.startsWith('event: ')) name = line.slice(7);
    else if (line.startsWith('data: ')) data = line.slice(6);
    else if (line.startsWith('id: ')) id = line.slice(4);
  }
  if (!name) return;
  const value = JSON.parse(data);
  ({ jobs: showJobs, job: showJob, plots: showPlots, begin, log: addLines, skip: addSkip, login })[name]?.(value);
  if (id) lastId = id;
}
function say(text, kind) { $('link').textContent = text; $('link').className = kind; }
function login() { $('login').hidden = false; }

// The list of jobs.
function showJobs(value) {
  if (value.error) { $('notes').textContent = value.error; return; }
  $('title').textContent = value.title;
  $('notes').textContent = value.notes.join('; ');
  jobs = value.jobs.map((job) => `${job.namespace}/${job.kind}/${job.name}`);
  $('jobs').tBodies[0].replaceChildren(...value.jobs.map((job, n) => el('tr', { className: jobs[n] === shown ? 'chosen' : '' },
    el('td', {}, el('a', { href: link(jobs[n]) }, job.name), ' ', el('small', {}, `${job.kind} in ${job.namespace}`)),
    el('td', { className: tone(job.state), title: job.reason }, job.state), el('td', {}, job.replicas),
    el('td', {}, job.restarts), el('td', {}, job.age), el('td', {}, job.progress))));
  if (!value.jobs.length) $('jobs').tBodies[0].append(el('tr', {}, el('td', { colSpan: 6 }, 'no jobs')));
  if (!shown && value.jobs.length === 1 && !part('list')) location.hash = link(jobs[0]);
}

// One job.
function choose() {
  const wanted = part('job') || null;
  $('home').href = `${link('')}&list=1`;
  $('namespace').value = part('ns');
  if (wanted !== shown || where !== part('ns') || !abort) {
    shown = wanted; where = part('ns'); lastId = ''; feed = ''; first = ''; drawn = '';
    clearLines();
    for (const id of ['why', 'stacks', 'yaml', 'plots', 'timeline', 'replicas', 'name', 'state', 'progress']) $(id).replaceChildren();
    $('p-progress').hidden = true;
    $('only').value = ''; $('search').value = ''; setFilter();
    follow();
  }
  $('job').hidden = !shown;
  document.querySelector('main').className = shown ? 'two' : '';
  document.title = shown ? `${shown.split('/')[2]} - trainop` : 'trainop';
}
function showJob(job) {
  if (job.error) { $('state').textContent = job.error; return; }
  $('name').textContent = `${job.kind} ${job.name}`;
  $('state').replaceChildren(el('b', { className: tone(job.state) }, job.state), `, ${span(job.seconds)} after its creation`,
    ...job.notes.map((note) => el('div', { className: 'warn' }, note)));
  $('progress').textContent = job.progress;
  if (job.progress) $('p-progress').hidden = false;
  showTimeline(job);
  showReplicas(job);
  $('conditions').tBodies[0].replaceChildren(...job.conditions.map((c) => el('tr', {}, el('td', {}, c.at), el('td', { className: c.status === 'True' ? tone(c.type) : '' }, `${c.type}=${c.status}`), el('td', {}, c.message))));
  $('events').tBodies[0].replaceChildren(...job.events.map((e) => el('tr', {}, el('td', {}, e.at), el('td', { className: tone(e.type) }, e.count > 1 ? `${e.reason} (${e.count})` : e.reason), el('td', {}, `${e.about}: ${e.message}`))).reverse());
  if (first !== job.first) { first = job.first; $('first').disabled = !first; paint(); }
  if (drawn !== job.state) { drawn = job.state; askWhy(); }
}
let told = null;
function showTimeline(job) {
  told = job;
  const steps = job.steps.filter((step) => step.at);
  const starts = steps.map((step) => Date.parse(step.at) / 1000), from = Math.min(...starts);
  const total = Math.max(1, job.seconds, ...steps.map((step, n) => starts[n] - from + lasts(step)));
  const wide = Math.max(300, $('timeline').clientWidth || 600), left = Math.min(220, wide * 0.4), high = 20;
  const picture = svg('svg', { viewBox: `0 0 ${wide} ${steps.length * high}`, height: steps.length * high, role: 'img', 'aria-label': 'Timeline' });
  steps.forEach((step, n) => {
    const x = left + (wide - left) * (starts[n] - from) / total, width = Math.max(2, (wide - left) * lasts(step) / total);
    const row = svg('g', {});
    const text = (step.inner ? '   ' : '') + step.text, room = Math.floor(left / 6);
    row.append(svg('title', {}, `${step.at} ${step.text}${step.seconds ? `, ${span(step.seconds)}` : ''}${step.evidence.map((line) => `\n${line}`).join('')}`),
      svg('text', { x: 0, y: n * high + 14, class: step.inner ? 'dim' : '' }, text.length > room ? `${text.slice(0, room - 1)}…` : text),
      svg('rect', { x: Math.min(x, wide - width), y: n * high + 4, width, height: 12, rx: 2, fill: colour(step) }));
    if (lasts(step)) row.append(svg('text', { x: Math.min(x + width + 4, wide - 50), y: n * high + 14, class: 'dim' }, span(lasts(step))));
    picture.append(row);
  });
  $('timeline').replaceChildren(picture, ...(job.hidden ? [el('small', {}, `${job.hidden} more steps; trainop describe has all`)] : []));
}
// A step of the replicas lasts from the first to the last of them.
const lasts = (step) => step.inner ? (step.until ? (Date.parse(step.until) - Date.parse(step.at)) / 1000 : 0) : step.seconds || 0;
const COLOURS = { running: 'run', succeeded: 'ok', failed: 'bad', restarting: 'warn', suspended: 'warn', queued: 'warn' };
const colour = (step) => `var(--${COLOURS[step.name] || 'done'})`;
function showReplicas(job) {
  const by = {};
  for (const each of job.replicas) by[each.phase] = (by[each.phase] || 0) + 1;
  $('counts').textContent = Object.entries(by).map(([phase, n]) => `${n} ${phase}`).join(', ') + (job.left ? `, ${job.left} more are not shown` : '');
  $('replicas').replaceChildren(...job.replicas.map((r) => el('button', {
    className: `${tone(r.phase)}${r.name === job.first ? ' first' : ''}`,
    title: `${r.pod}: ${r.phase}${r.restarts ? `, ${r.restarts} restarts` : ''}${r.exit === null ? '' : `, exit code ${r.exit}`}${r.node ? `, on ${r.node}` : ''}${r.detail ? `\n${r.detail}` : ''}`,
    onclick: () => { $('only').value = $('only').value === r.name ? '' : r.name; setFilter(); },
  }, r.restarts ? `${r.name} ↻${r.restarts}` : r.name)));
  const names = job.replicas.map((r) => r.name), have = [...$('only').options].slice(1).map((o) => o.value);
  for (const name of names) if (!have.includes(name)) $('only').append(el('option', { value: name }, name));
}
function showPlots(series) {
  if (!series.length) return;
  $('p-progress').hidden = false;
  $('plots').replaceChildren(...series.map(({ name, points }) => {
    const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
    const low = Math.min(...ys), high = Math.max(...ys), begin = xs[0], last = xs[xs.length - 1];
    const at = ([x, y]) => `${(4 + 232 * (x - begin) / (last - begin || 1)).toFixed(1)},${(72 - 48 * (y - low) / (high - low || 1)).toFixed(1)}`;
    const short = (v) => Number(v.toPrecision(5)).toString();
    const picture = svg('svg', { viewBox: '0 0 240 90', role: 'img', 'aria-label': `${name}: ${short(ys[ys.length - 1])}` });
    picture.append(svg('text', { x: 4, y: 12 }, name), svg('text', { x: 236, y: 12, 'text-anchor': 'end' }, short(ys[ys.length - 1])),
      svg('polyline', { points: points.map(at).join(' '), fill: 'none', stroke: 'var(--run)', 'stroke-width': 1.5 }),
      svg('circle', { cx: at(points[points.length - 1]).split(',')[0], cy: at(points[points.length - 1]).split(',')[1], r: 2.5, fill: 'var(--run)' }),
      svg('text', { x: 4, y: 87, class: 'dim' }, `${short(low)} to ${short(high)}`),
      svg('text', { x: 236, y: 87, class: 'dim', 'text-anchor': 'end' }, `${points.length} reports, ${span(last - begin)}`));
    return picture;
  }));
}

// The logs: all lines in memory, of which those that are seen are in the document.
let lines = [], chosen = null, atEnd = true, dropped = 0, skipped = 0, painted = false;
function clearLines() { lines = []; chosen = null; atEnd = true; dropped = skipped = 0; paint(); }
function begin([identity, position]) {
  if (identity !== feed || !position) { clearLines(); lastId = ''; }
  feed = identity;
}
function addSkip(value) { skipped += value.lines; add([['', '', `--- ${value.lines.toLocaleString('en')} lines skipped: this page was too slow for them`]]); }
function addLines(value) { add(value.lines); }
function add(some) {
  for (const line of some) lines.push(line);
  if (lines.length > MAX_LINES) { dropped += DROP; lines.splice(0, DROP); setFilter(); return; }
  if (chosen) for (const line of some) if (passes(line)) chosen.push(line);
  paint();
}
function passes(line) {
  const only = $('only').value, text = $('search').value.toLowerCase();
  return (!only || line[1] === only) && (!text || line[2].toLowerCase().includes(text));
}
function setFilter() {
  chosen = $('only').value || $('search').value ? lines.filter(passes) : null;
  paint();
}
function paint() {
  if (painted) return;
  painted = true;
  requestAnimationFrame(() => { painted = false; draw(); });
}
function draw() {
  const all = chosen || lines, box = $('logs');
  $('count').textContent = `${(lines.length + dropped).toLocaleString('en')} lines${chosen ? `, ${chosen.length.toLocaleString('en')} found` : ''}${dropped ? `, the last ${lines.length.toLocaleString('en')} are here` : ''}${skipped ? `, ${skipped.toLocaleString('en')} skipped` : ''}`;
  $('lines').style.height = `${all.length * ROW}px`;
  if (atEnd) box.scrollTop = box.scrollHeight;
  const from = Math.max(0, Math.floor(box.scrollTop / ROW) - 10), to = Math.min(all.length, from + Math.ceil(box.clientHeight / ROW) + 20);
  const rows = [];
  for (let n = from; n < to; n++) rows.push(row(all[n], n));
  $('lines').replaceChildren(...rows);
}
function row([time, label, text], n) {
  const made = el('div', { className: `l${label && label === first ? ' f' : ''}${label ? '' : ' n'}` });
  made.style.top = `${n * ROW}px`;
  if (label) made.append(el('i', {}, `${time.slice(11, 23)} `), el('b', {}, `${label} `));
  const wanted = $('search').value.toLowerCase(), at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
  if (at < 0) made.append(text);
  else made.append(text.slice(0, at), el('mark', {}, text.slice(at, at + wanted.length)), text.slice(at + wanted.length));
  return made;
}
function toFirst() {
  if (!first) return;
  $('only').value = ''; $('search').value = ''; setFilter();
  let n = lines.length - 1;
  while (n > 0 && lines[n][1] !== first) n--;
  atEnd = false;
  draw();
  $('logs').scrollTop = Math.max(0, (n - 8) * ROW);
  $('logs').focus();
}
function toEnd() { atEnd = true; paint(); }

// On demand.
async function ask(path, method) {
  const answer = await get(path, { job: shown }, { method });
  if (answer.ok) return answer.json();
  const text = await refusal(answer);
  return { text, causes: [{ text, evidence: [], next: '' }], state: '', unread: [] };
}
async function askWhy() {
  const job = shown, found = await ask('why', 'GET').catch((error) => ({ state: '', causes: [{ text: error.message, evidence: [], next: '' }], unread: [] }));
  if (job !== shown) return;
  $('why').replaceChildren(...found.causes.flatMap((cause) => [el('p', {}, `${cause.text}.`),
    ...cause.evidence.map((line) => el('div', { className: 'evidence' }, `| ${line}`)), ...(cause.next ? [el('div', {}, `→ ${cause.next}`)] : [])]),
    ...found.unread.map((text) => el('div', { className: 'warn' }, `could not read ${text}`)));
}
async function askText(id, path, method) {
  const job = shown;
  $(id).textContent = 'reading ...';
  const found = await ask(path, method).catch((error) => ({ text: error.message }));
  if (job === shown) $(id).textContent = found.text;
}

$('logs').addEventListener('scroll', () => { const box = $('logs'); atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - ROW; paint(); });
$('search').addEventListener('input', setFilter);
$('only').addEventListener('change', setFilter);
$('first').addEventListener('click', toFirst);
$('end').addEventListener('click', toEnd);
// The way through a login forgets what stands behind the #. Browsers may have no storage.
let store = null;
try { store = sessionStorage; } catch { /* the list of jobs is shown then */ }
$('login').addEventListener('click', () => { store?.setItem('at', query({ ns: part('ns'), job: part('job') })); location.reload(); });
$('where').addEventListener('submit', (event) => { event.preventDefault(); location.hash = `${link('', $('namespace').value.trim())}&list=1`; });
$('ask-why').addEventListener('click', askWhy);
$('ask-stacks').addEventListener('click', () => askText('stacks', 'stacks', 'POST'));
$('ask-yaml').addEventListener('click', () => askText('yaml', 'yaml', 'GET'));
document.addEventListener('visibilitychange', follow);
window.addEventListener('hashchange', choose);
window.addEventListener('resize', () => { paint(); if (told && shown) showTimeline(told); });
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === 'Escape') { if (document.activeElement === $('search')) $('search').blur(); else if (shown) location.hash = `${link('')}&list=1`; return; }
  if (/^(INPUT|SELECT)$/.test(event.target.tagName)) return;
  if (event.key === '/') { $('search').focus(); event.preventDefault(); }
  else if (event.key === 'f') toFirst();
  else if (event.key === 'e') toEnd();
  else if (event.key === 'j' || event.key === 'k') {
    const next = jobs[jobs.indexOf(shown) + (event.key === 'j' ? 1 : -1)];
    if (next) location.hash = link(next);
  }
});
const left = store?.getItem('at');
store?.removeItem('at');
if (left && !location.hash) history.replaceState(null, '', `#${left}`);
choose();
})();
