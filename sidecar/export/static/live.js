// Replaces the page's content every two seconds; dims it while the sidecar does not answer.
const content = document.getElementById("content");
async function refresh() {
  try {
    const response = await fetch("content", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(response.status);
    content.innerHTML = await response.text();
    content.classList.remove("stale");
  } catch {
    content.classList.add("stale");
  }
}
setInterval(() => document.hidden || refresh(), 2000);
