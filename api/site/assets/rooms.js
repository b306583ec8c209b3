// Shows waiting rooms as they change, without loading the page again: the stream tells that something has, and the
// parts that show it are taken from a fresh page. Without scripts the page refreshes itself.

const button = document.querySelector('button.follow');
const announcer = document.getElementById('announcer');
const parts = '#state, #recovering, #now, #charts, #periods, #forecast, #settings, #versions, [id^="state-"], [id^="now-"]';
let source = null;
let fetching = false;
let again = false;

async function show() {
  again = fetching;
  if (fetching) return;
  fetching = true;
  try {
    const answer = await fetch(location.href, { cache: 'no-store' });
    if (!answer.ok) throw new Error(answer.statusText);
    const fresh = new DOMParser().parseFromString(await answer.text(), 'text/html');
    for (const part of source ? document.querySelectorAll(parts) : []) {
      const now = fresh.getElementById(part.id);
      if (now && now.innerHTML !== part.innerHTML) part.replaceChildren(...now.childNodes);
    }
  } catch {
    // The next change tries again.
  }
  fetching = false;
  if (again && source) show();
}

function stop(text) {
  source?.close();
  source = null;
  button.setAttribute('aria-pressed', 'false');
  announcer.textContent = text;
}

function start() {
  button.setAttribute('aria-pressed', 'true');
  source = new EventSource(button.dataset.stream);
  source.addEventListener('message', show);
  source.addEventListener('error', () => {
    // What is connecting again does so by itself.
    if (source?.readyState === EventSource.CLOSED) stop('Changes cannot be shown now; please try again later');
  });
}

button.addEventListener('click', () => {
  if (source) {
    stop('Changes are not shown any more');
  } else {
    announcer.textContent = 'Changes are shown as they come';
    start();
  }
});
window.addEventListener('pagehide', () => { if (source) stop(''); });
window.addEventListener('pageshow', (event) => { if (event.persisted && button.dataset.live === 'true') start(); });
button.hidden = false;
if (button.dataset.live === 'true') start();
