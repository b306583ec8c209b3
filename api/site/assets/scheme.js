// The colours that the visitor has chosen, before anything is drawn. Nothing is kept where they are those of the system.

(() => {
  try {
    const scheme = localStorage.getItem('scheme');
    if (scheme === 'light' || scheme === 'dark') document.documentElement.dataset.scheme = scheme;
  } catch {
    // The browser keeps nothing for this site.
  }
})();
