// Lets the log grow while somebody looks at it, when they ask for that. Without it a
// reload does the same.

const list = document.getElementById('log');
const button = document.querySelector('button.follow');
const announcer = document.getElementById('announcer');
const most = 500; // entries in the page
let source = null;
let address = new URL(list.dataset.stream, location.href);
let unheard = 0;
let timer = 0;

function element(name, className, ...children) {
  const e = document.createElement(name);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

function link(href, text) {
  const a = element('a', '', text);
  a.href = href;
  return a;
}

function fact(name, value) {
  return element('div', '', element('dt', '', name), element('dd', '', value));
}

function moment(text) {
  const time = element('time', '', new Date(text).toLocaleString('en-GB', { day: 'numeric', month: 'long', year: 'numeric', hour: '2-digit', minute: '2-digit', timeZoneName: 'short' }));
  time.dateTime = text;
  return time;
}

function item(entry) {
  const state = element('span', `state state-${entry.kind}`, entry.kind.replaceAll('-', ' '));
  const title = element('h3', '', state, ' ');
  if (entry.package) title.append(link(`/history/${encodeURIComponent(entry.package)}`, entry.package));
  if (entry.version) title.append(' ', link(`/history/${encodeURIComponent(entry.package)}/${encodeURIComponent(entry.version)}`, entry.version));
  const li = element('li', 'fresh', title);
  li.id = `entry-${entry.index}`;
  if (entry.reason) li.append(element('p', '', entry.reason.slice(0, 1000)));
  li.append(element('dl', 'facts',
    fact('Log entry', link(`/history?entry=${entry.index}`, String(entry.index))),
    fact('When', moment(entry.time)),
    fact('By', entry.actor)));
  return li;
}

// Not each entry by itself: hundreds may come in a minute.
function announce() {
  unheard++;
  timer ||= setTimeout(() => {
    announcer.textContent = unheard === 1 ? 'A new entry in the log' : `${unheard} new entries in the log`;
    unheard = timer = 0;
  }, 1000);
}

function receive(event) {
  const entry = JSON.parse(event.data);
  address.searchParams.set('after', event.lastEventId);
  if (document.getElementById(`entry-${entry.index}`)) return;
  document.getElementById('nothing')?.remove();
  list.prepend(item(entry));
  while (list.children.length > most) list.lastElementChild.remove();
  announce();
}

function stop(text) {
  source?.close();
  source = null;
  button.setAttribute('aria-pressed', 'false');
  announcer.textContent = text;
}

button.addEventListener('click', () => {
  if (source) {
    stop('The log is not followed any more');
    return;
  }
  button.setAttribute('aria-pressed', 'true');
  announcer.textContent = 'The log is followed: new entries appear at the top';
  source = new EventSource(address);
  source.addEventListener('message', receive);
  source.addEventListener('error', () => {
    // What is connecting again does so by itself.
    if (source?.readyState === EventSource.CLOSED) stop('The log cannot be followed now; please try again later');
  });
});
window.addEventListener('pagehide', () => { if (source) stop(''); });
button.hidden = false;
