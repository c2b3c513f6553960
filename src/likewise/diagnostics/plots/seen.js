// Calls draw(element) once for each element, when it is about to be seen, and for all of them before printing.
function whenSeen(elements, draw) {
  const waiting = new Set(elements);
  const begin = (element) => waiting.delete(element) && draw(element);
  const observer = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => begin(entry.target)),
    { rootMargin: "600px" },
  );
  waiting.forEach((element) => observer.observe(element));
  window.addEventListener("beforeprint", () => waiting.forEach(begin));
}
