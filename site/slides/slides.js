// A slide that holds more than its height gets smaller words, down to half of them.
const HEIGHT = 720;
const ROOM = 690;
const fit = (slide) => {
  for (let size = 100; size >= 50 && slide.scrollHeight > ROOM; size -= 4) slide.style.fontSize = `${size}%`;
};
Reveal.initialize({ width: 1280, height: HEIGHT, margin: 0.04, center: false, hash: true, scrollLayout: "compact", slideNumber: "c/t", transition: "none", plugins: [RevealNotes] });
Reveal.on("ready", ({ currentSlide }) => fit(currentSlide));
Reveal.on("slidechanged", ({ currentSlide }) => fit(currentSlide));
