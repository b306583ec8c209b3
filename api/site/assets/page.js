// What scripts add to every page: buttons that copy, and a version picker that needs
// no second click. Without them all is there to be selected and submitted by hand.

document.documentElement.classList.add('scripted');

const announcer = document.getElementById('announcer');

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // There is no clipboard where the page comes over plain HTTP from another machine.
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'unseen';
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    if (!done) throw new Error('the browser does not let the page copy');
  }
}

document.addEventListener('click', async (event) => {
  const button = event.target.closest('button.copy');
  if (!button) return;
  const from = button.dataset.copyFrom;
  const text = from ? document.getElementById(from).textContent : button.dataset.copy;
  const what = button.getAttribute('aria-label').replace(/^Copy /, '');
  try {
    await copy(text);
  } catch {
    announcer.textContent = `Could not copy ${what}; please select the text instead.`;
    return;
  }
  button.focus();
  button.classList.add('done');
  announcer.textContent = '';
  requestAnimationFrame(() => { announcer.textContent = `Copied ${what}`; });
  clearTimeout(button.timer);
  button.timer = setTimeout(() => button.classList.remove('done'), 2000);
});

for (const select of document.querySelectorAll('select[data-submits]')) {
  // Arrow keys change a closed picker step by step, so with them it takes Enter.
  let typing = false;
  const shown = select.value;
  select.addEventListener('keydown', (event) => {
    typing = event.key !== 'Enter';
    if (event.key === 'Enter' && select.value !== shown) select.form.requestSubmit();
  });
  select.addEventListener('pointerdown', () => { typing = false; });
  window.addEventListener('pageshow', () => { select.value = shown; }); // after going back
  select.addEventListener('change', () => { if (!typing) select.form.requestSubmit(); });
}

const root = document.documentElement;
for (const choice of document.querySelectorAll('.scheme input')) {
  choice.checked = choice.value === (root.dataset.scheme ?? 'system');
  choice.addEventListener('change', () => {
    const chosen = choice.value === 'system' ? '' : choice.value;
    if (chosen) root.dataset.scheme = chosen;
    else delete root.dataset.scheme;
    try {
      if (chosen) localStorage.setItem('scheme', chosen);
      else localStorage.removeItem('scheme');
    } catch {
      // It holds for this page.
    }
  });
}

// Times are in the reader's zone.
const day = { day: 'numeric', month: 'long', year: 'numeric' };
const minute = { ...day, hour: '2-digit', minute: '2-digit', timeZoneName: 'short' };
for (const time of document.querySelectorAll('time[data-to]')) {
  time.title = time.dateTime;
  time.textContent = new Date(time.dateTime).toLocaleString('en-GB', time.dataset.to === 'day' ? day : minute);
}
