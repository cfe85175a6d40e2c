// Light or dark, as the surrounding Airflow page; without one, as the system.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function outside() {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null; // a page of another origin
    }
  }

  const around = outside();

  function apply() {
    const chosen = ["dark", "light"].find((theme) => around?.classList.contains(theme));
    const theme = chosen ?? (system.matches ? "dark" : "light");
    if (root.dataset.theme !== theme) {
      root.dataset.theme = theme;
      window.dispatchEvent(new Event("themechange"));
    }
  }

  apply();
  system.addEventListener("change", apply);
  if (around) new MutationObserver(apply).observe(around, { attributeFilter: ["class"] });
})();
