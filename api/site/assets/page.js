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
