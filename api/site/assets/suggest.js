// Suggestions while somebody types into the search box: a combobox with a list
// (https://www.w3.org/WAI/ARIA/apg/patterns/combobox/). Enter without a choice
// submits the form as it does without scripts.

const announcer = document.getElementById('announcer');
const most = 8;
const pause = 120; // milliseconds without a key before the search is asked

function attach(input) {
  const list = document.createElement('ul');
  list.id = `${input.id}-suggestions`;
  list.className = 'suggestions';
  list.hidden = true;
  list.setAttribute('role', 'listbox');
  list.setAttribute('aria-label', 'Suggested libraries');
  input.after(list);
  input.setAttribute('role', 'combobox');
  input.setAttribute('aria-autocomplete', 'list');
  input.setAttribute('aria-expanded', 'false');
  input.setAttribute('aria-controls', list.id);

  let timer, request, chosen = -1, names = [];

  // settle keeps the list as it is: nobody's choice may change under their fingers.
  function settle() {
    clearTimeout(timer);
    request?.abort();
  }

  function close() {
    settle();
    list.hidden = true;
    input.setAttribute('aria-expanded', 'false');
    choose(-1);
  }

  function choose(index) {
    list.children[chosen]?.setAttribute('aria-selected', 'false');
    chosen = index;
    const option = list.children[chosen];
    if (!option) {
      input.removeAttribute('aria-activedescendant');
      return;
    }
    option.setAttribute('aria-selected', 'true');
    option.scrollIntoView({ block: 'nearest' });
    input.setAttribute('aria-activedescendant', option.id);
  }

  function visit(index) {
    location.assign(`/library/${encodeURIComponent(names[index])}`);
  }

  function show(results) {
    names = results.map((result) => result.name);
    chosen = -1;
    input.removeAttribute('aria-activedescendant');
    list.replaceChildren(...results.map((result, index) => {
      const option = document.createElement('li');
      option.id = `${list.id}-${index}`;
      option.setAttribute('role', 'option');
      option.setAttribute('aria-selected', 'false');
      for (const part of ['name', 'version', 'description']) {
        const span = document.createElement('span');
        span.className = `suggestion-${part}`;
        span.textContent = result[part] || '';
        option.append(span, ' ');
      }
      option.addEventListener('click', () => visit(index));
      return option;
    }));
    list.hidden = results.length === 0;
    input.setAttribute('aria-expanded', String(!list.hidden));
    announcer.textContent = results.length === 0 ? 'No suggestions'
      : `${results.length} ${results.length === 1 ? 'suggestion' : 'suggestions'}, arrow keys to choose`;
  }

  async function ask() {
    const text = input.value.trim();
    if (!text) {
      close();
      return;
    }
    settle();
    request = new AbortController();
    const { signal } = request;
    const query = new URLSearchParams({ search: text, limit: most, fields: 'name,description,version' });
    try {
      const response = await fetch(`/libraries?${query}`, { signal, cache: 'no-cache' });
      if (!response.ok) return;
      const { results } = await response.json();
      if (!signal.aborted && document.activeElement === input) show(results);
    } catch {
      // Another letter was typed, or the network is away: the form still works.
    }
  }

  input.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(ask, pause);
  });
  input.addEventListener('keydown', (event) => {
    if (event.isComposing) return;
    const count = list.hidden ? 0 : list.children.length;
    switch (event.key) {
      case 'ArrowDown':
      case 'ArrowUp':
        event.preventDefault();
        settle();
        if (count === 0) ask();
        else if (event.key === 'ArrowDown') choose(chosen + 1 < count ? chosen + 1 : -1);
        else choose(chosen < 0 ? count - 1 : chosen - 1);
        break;
      case 'Escape':
        if (count > 0) {
          event.preventDefault();
          close();
        }
        break;
      case 'Tab':
        close();
        break;
    }
  });
  // Enter submits, whoever presses it: a hand, an input method, another program.
  input.form.addEventListener('submit', (event) => {
    if (list.hidden || chosen < 0) return;
    event.preventDefault();
    visit(chosen);
  });
  list.addEventListener('pointerdown', (event) => event.preventDefault()); // the focus stays
  input.addEventListener('blur', close);
}

for (const input of document.querySelectorAll('input[data-suggest]')) attach(input);
