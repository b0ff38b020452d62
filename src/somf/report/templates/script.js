(() => {
  "use strict";
  // A run that is going: look again after some seconds, unless nobody looks.
  const seconds = Number(document.body.dataset.refresh);
  const look = async () => {
    if (document.hidden) return setTimeout(look, 1000);
    if (location.protocol === "file:") return location.reload();
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const text = await answer.text();
      const height = scrollY;
      document.open();
      document.write(text);
      document.close();
      scrollTo({ top: height, behavior: "instant" });
    } catch {
      const lost = document.getElementById("lost");
      if (lost) lost.hidden = false;
    }
  };
  if (seconds) setTimeout(look, 1000 * seconds);

  // Viewers: the document of a map is what all share, with its own parts put in.
  for (const viewer of document.querySelectorAll(".viewer")) {
    const { shared, places, maps } = JSON.parse(viewer.querySelector("script").textContent);
    const select = viewer.querySelector("select");
    const frame = viewer.querySelector("iframe");
    const fit = () => {
      const body = frame.contentDocument && frame.contentDocument.body;
      if (body) frame.style.height = `${body.scrollHeight}px`;
    };
    const show = () => {
      const parts = shared.slice();
      places.forEach((place, i) => { parts[place] = maps[select.value][i]; });
      frame.srcdoc = parts.join('"');
    };
    frame.addEventListener("load", fit);
    addEventListener("resize", fit);
    select.addEventListener("change", show);
    show();
  }

  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
