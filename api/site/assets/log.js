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

function cell(className, ...children) {
  const td = element('td', className, ...children);
  td.setAttribute('role', 'cell');
  return td;
}

function moment(text) {
  const time = element('time', '', new Date(text).toLocaleString('en-GB', { day: 'numeric', month: 'long', year: 'numeric', hour: '2-digit', minute: '2-digit', timeZoneName: 'short' }));
  time.dateTime = text;
  return time;
}

function row(entry) {
  const number = element('th', '', link(`/history?entry=${entry.index}`, String(entry.index)));
  number.scope = 'row';
  number.setAttribute('role', 'rowheader');
  const release = cell('');
  if (entry.package) release.append(link(`/history/${encodeURIComponent(entry.package)}`, entry.package));
  if (entry.version) release.append(' ', link(`/history/${encodeURIComponent(entry.package)}/${encodeURIComponent(entry.version)}`, entry.version));
  const tr = element('tr', 'fresh', number, cell('when', moment(entry.time)),
    cell('', element('span', `state state-${entry.kind}`, entry.kind.replaceAll('-', ' '))), release,
    cell('why', (entry.reason ?? '').slice(0, 300)), cell('', entry.actor));
  tr.setAttribute('role', 'row');
  tr.id = `entry-${entry.index}`;
  return tr;
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
  list.prepend(row(entry));
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
