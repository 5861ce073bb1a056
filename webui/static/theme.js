// Loaded as a classic script in <head>: the chosen colours are there before the first paint.
{
  const KEY = "emberd-theme";
  const NEXT = { system: "light", light: "dark", dark: "system" };
  const LABEL = { system: "Colours: as the system", light: "Colours: light", dark: "Colours: dark" };
  const root = document.documentElement;

  const read = () => {
    try {
      return localStorage.getItem(KEY) ?? "system";
    } catch {
      return "system"; // a browser that keeps nothing for this page
    }
  };

  const apply = (theme) => {
    if (theme in LABEL && theme !== "system") root.dataset.theme = theme;
    else delete root.dataset.theme;
    for (const name of ["aria-label", "title"]) {
      document.getElementById("theme")?.setAttribute(name, LABEL[theme] ?? LABEL.system);
    }
  };

  let theme = read();
  apply(theme);

  document.addEventListener("DOMContentLoaded", () => {
    apply(theme);
    document.getElementById("theme").addEventListener("click", () => {
      theme = NEXT[theme] ?? "system";
      apply(theme);
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // The choice then lasts until the page is closed.
      }
    });
  });
}
