// Replaces the page's content every two seconds; dims it while the sidecar does not answer.
const content = document.getElementById("content");
async function refresh() {
  if (!getSelection().isCollapsed) return; // someone is copying text
  try {
    const response = await fetch("content", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(response.status);
    const folds = () => content.querySelectorAll("details");
    const open = new Map([...folds()].map((fold) => [fold.dataset.fold, fold.open]));
    content.innerHTML = await response.text();
    for (const fold of folds()) fold.open = open.get(fold.dataset.fold) ?? fold.open;
    content.classList.remove("stale");
  } catch {
    content.classList.add("stale");
  }
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
