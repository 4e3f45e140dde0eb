// Replaces the page's content every two seconds, and says how old it is; dims it while the sidecar
// does not answer.
let renewed = performance.now();
const content = document.getElementById("content");
async function refresh() {
  if (!getSelection().isCollapsed) return; // someone is copying text
  try {
    const response = await fetch("content", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(response.status);
    replace(await response.text());
    content.classList.remove("stale");
  } catch {
    content.classList.add("stale");
  }
}
// Folds stay open, wide tables scrolled, and the keyboard where it was.
function replace(text) {
  const folds = () => [...content.querySelectorAll("details")];
  const tables = () => [...content.querySelectorAll(".wide")];
  const open = new Map(folds().map((fold) => [fold.dataset.fold, fold.open]));
  const scrolled = tables().map((table) => table.scrollLeft);
  const focused = document.activeElement?.closest("summary, .paste button");
  const fold = focused?.closest("details")?.dataset.fold;
  content.innerHTML = text;
  renewed = performance.now();
  tell();
  for (const one of folds()) one.open = open.get(one.dataset.fold) ?? one.open;
  tables().forEach((table, place) => (table.scrollLeft = scrolled[place] ?? 0));
  if (!focused) return;
  const within = folds().find((one) => one.dataset.fold === fold) ?? content;
  within.querySelector(focused.localName)?.focus({ preventScroll: true });
}
function tell() {
  const at = content.querySelector(".clock time");
  const age = Math.round(Number(at.dataset.age) + (performance.now() - renewed) / 1000);
  at.nextElementSibling.textContent = `, ${age < 100 ? `${age} s` : `${Math.round(age / 60)} min`} ago`;
}
// Copies the configuration beside a button. Without TLS, browsers offer no clipboard but this way.
content.addEventListener("click", async (event) => {
  const button = event.target.closest(".paste button");
  if (!button) return;
  const code = button.nextElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "copied";
});
setInterval(() => document.hidden || refresh(), 2000);
setInterval(tell, 1000);
document.addEventListener("visibilitychange", () => document.hidden || refresh());
tell();
