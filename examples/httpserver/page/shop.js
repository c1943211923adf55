// The page works without this script. With it, orders are sent by fetch, the
// buttons that make things go wrong are there, and the state is kept up to date.
'use strict';

const form = document.getElementById('order');
const hiddenKey = form.elements.idempotency_key;
const live = document.getElementById('live');
const trials = document.getElementById('trials');
const sent = document.getElementById('sent');

let sending = 0; // orders of the form that have no answer yet

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// newKey makes the key of one order: before its first request, and not for each
// request. (crypto.randomUUID would be shorter, but is there on https only.)
function newKey() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');
}

// send sends an order until there is a definite answer, always with the same key.
// It returns the answer, or null if it gave up after two minutes.
async function send(key, order, line, loseReply) {
  const giveUp = Date.now() + 120_000;
  for (let attempt = 1; Date.now() < giveUp; attempt++) {
    const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': `"${key}"` };
    if (loseReply && attempt === 1) headers['Debug-Lose-Reply'] = '1';
    let wait = Math.min(0.25 * 2 ** attempt, 4);
    try {
      const response = await fetch('/api/orders', { method: 'POST', headers, body: JSON.stringify(order) });
      const answer = await response.json();
      answer.status = response.status;
      answer.replayed = response.headers.get('Idempotent-Replayed') === 'true';
      line.note(...inWords(answer));
      if (answer.reason !== 'in-progress' && answer.status < 500) return answer;
      wait = Number(response.headers.get('Retry-After')) || wait;
    } catch {
      line.note('unheard', 'no answer'); // cut off, before the answer or in it
    }
    await sleep(1000 * wait);
  }
  line.note('failed', 'gave up; the key is kept');
  return null;
}

// inWords returns the class and the text by which an answer is shown.
function inWords(answer) {
  if (answer.replayed) return ['replayed', `${answer.status} replayed: order ${answer.number}`];
  if (answer.status === 201) return ['ran', `201 order ${answer.number}`];
  if (answer.reason === 'in-progress') return ['progress', '409 in progress'];
  if (answer.reason === 'key-reused') return ['conflict', '422 the key has another order'];
  return ['conflict', `${answer.status} ${answer.title}`];
}

// A line shows what one request, or its repetitions, came to.
function newLine(which) {
  const li = document.createElement('li');
  const name = document.createElement('span');
  name.className = 'which';
  name.textContent = which;
  li.append(name);
  sent.append(li);
  document.getElementById('nothing-sent').hidden = true;
  return {
    note(kind, text) {
      const before = li.lastElementChild;
      if (before.dataset.text === text) {
        before.dataset.times = Number(before.dataset.times || 1) + 1;
        before.textContent = `${text} × ${before.dataset.times}`;
        return refresh();
      }
      const tag = document.createElement('span');
      tag.className = `tag ${kind}`;
      tag.textContent = tag.dataset.text = text;
      li.append(tag);
      return refresh();
    },
  };
}

// setKey gives the form the key of its order.
function setKey(key) {
  hiddenKey.value = key;
  document.getElementById('key').textContent = key;
}

// begin clears away what was said of the order before.
function begin() {
  if (sending > 0) return;
  sent.replaceChildren();
  document.getElementById('ordered').hidden = true;
}

function chosen() {
  const order = new FormData(form);
  return { item: order.get('item'), amount: Number(order.get('amount')) };
}

// submit sends the order of the form with the key that came with it. It is noted
// down before the first request, so that a page that is reloaded in the middle goes
// on with the same key.
const noted = 'order';

async function submit(key, order) {
  sessionStorage.setItem(noted, JSON.stringify({ customer: document.body.dataset.customer, key, order }));
  sending++;
  const answer = await send(key, order, newLine('Order'), false);
  sending--;
  if (answer === null) return; // the next click sends the same
  const status = document.getElementById('ordered');
  status.hidden = false;
  status.textContent = answer.status === 201 ? `Order ${answer.number} is placed.` : `${answer.title}: ${answer.detail}`;
  if (sending > 0) return; // a second click is on its way with this key
  sessionStorage.removeItem(noted);
  setKey(newKey());
}

form.addEventListener('submit', (event) => {
  event.preventDefault();
  begin();
  submit(hiddenKey.value, chosen());
});

function resume() {
  const before = JSON.parse(sessionStorage.getItem(noted));
  if (before === null || before.customer !== document.body.dataset.customer) return;
  setKey(before.key);
  submit(before.key, before.order);
}

// trial makes a button of something that goes wrong.
function trial(id, run) {
  document.getElementById(id).addEventListener('click', async () => {
    if (!form.reportValidity()) return;
    begin();
    for (const b of trials.querySelectorAll('button')) b.disabled = true;
    trials.setAttribute('aria-busy', 'true');
    await run(newKey(), chosen());
    for (const b of trials.querySelectorAll('button')) b.disabled = false;
    trials.setAttribute('aria-busy', 'false');
  });
}

trial('twice', async (key, order) => {
  await send(key, order, newLine('Request 1'), false);
  await send(key, order, newLine('Request 2'), false);
});

trial('ten', async (key, order) => {
  await Promise.all(Array.from({ length: 10 }, (_, i) => send(key, order, newLine(`Request ${i + 1}`), false)));
});

trial('lose', async (key, order) => {
  await send(key, order, newLine('Request 1'), true);
});

trial('other', async (key, order) => {
  await send(key, order, newLine('Request 1'), false);
  const other = { ...order, amount: order.amount === 1 ? 2 : order.amount - 1 };
  await send(key, other, newLine('Request 2'), false);
});

// The state is asked for once a second, and more often while something is sent.
let asking = false;

async function refresh() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const response = await fetch('/state');
    const state = await response.text();
    if (response.ok && state !== refresh.last) live.innerHTML = refresh.last = state;
  } catch {
    refresh.last = live.innerHTML = '<p class="problem" role="status">The shop does not answer. It is asked again.</p>';
  }
  asking = false;
}

async function watch() {
  for (;;) {
    await refresh();
    await sleep(sending > 0 || trials.getAttribute('aria-busy') === 'true' ? 250 : 1000);
  }
}

trials.hidden = false;
resume();
watch();
