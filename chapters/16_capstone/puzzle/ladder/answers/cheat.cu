// FAILS: rule
unsigned ladder(int levers, Time, Step step) { return fits(step, (1u << levers) - 1) ? (1u << levers) - 1 : ~0u; }  // all of them: fits if anything does
