
// --- a page that is served while its runs go on: the state every two seconds, all else when the server has newer figures ---
async function follow() {
  const live = document.querySelector("#live");
  let version = live.dataset.version, failures = 0;
  for (;;) {
    await new Promise(done => setTimeout(done, 2000));
    if (document.hidden) continue;
    try {
      const state = await (await fetch("state", {cache: "no-store"})).json();
      failures = 0;
      live.querySelector("[role=status]").textContent = state.status;
      live.querySelector(".now").innerHTML = state.now;
      if (state.version !== version && !document.querySelector(":active, .filter input:focus")) {
        await renew();
        version = state.version;
      }
    } catch {
      if (++failures > 2) live.querySelector("[role=status]").textContent = "The server of this page has ended: what you see is what it knew last.";
    }
  }
}

// The newest report in place of the one that is shown; what was opened stays open.
async function renew() {
  const text = await (await fetch("", {cache: "no-store"})).text();
  const newer = new DOMParser().parseFromString(text, "text/html"), main = document.querySelector("main");
  const open = new Set([...main.querySelectorAll("details[open] > summary")].map(each => each.textContent));
  for (const each of newer.querySelectorAll("details > summary")) each.parentElement.open = open.has(each.textContent);
  document.title = newer.title;
  newer.querySelector("#live").replaceWith(document.querySelector("#live"));
  main.replaceChildren(...newer.querySelector("main").childNodes);
  enhance();
}
follow();
