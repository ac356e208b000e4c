/* The contents show where one is. */
(() => {
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const mark = () => {
    const passed = [...links.keys()].filter((id) => document.getElementById(id).getBoundingClientRect().top < 140);
    const end = innerHeight + scrollY >= document.documentElement.scrollHeight - 4;
    const here = end ? [...links.keys()].pop() : passed.pop() || [...links.keys()][0];
    links.forEach((link, id) => link.classList.toggle("here", id === here));
  };
  addEventListener("scroll", mark, { passive: true });
  mark();
})();
