// The answer in words.

#include <fmt/format.h>

#include "answer.h"
#include "words.h"

namespace oomlab::fit {
namespace {

// 10^9 and 10^6 bytes.
std::string gb(std::uint64_t bytes) {
  const bool large = bytes >= 100'000'000;
  return fmt::format("{:.3f} {}", double(bytes) / (large ? 1e9 : 1e6), large ? "GB" : "MB");
}

std::string time_words(const std::optional<double>& seconds) {
  if (!seconds) return "-";
  return *seconds < 1e-3    ? fmt::format("{:.3g} us", *seconds * 1e6)
         : *seconds < 1     ? fmt::format("{:.3g} ms", *seconds * 1e3)
         : *seconds < 999.5 ? fmt::format("{:.3g} s", *seconds)
                            : fmt::format("{:.0f} s", *seconds);
}

std::string line(const std::string& text) { return text + "\n"; }

std::string categories(const ByCategory& bytes) {
  std::string words;
  for (std::size_t c = 0; c < kCategoryCount; ++c)
    if (bytes.bytes[c]) words += fmt::format("  {:<22} {:>12}\n", name_of(Category(c)), gb(bytes.bytes[c]));
  return words;
}

// Which card it is, where that does not go without saying.
std::string card_note(const Question& q) {
  if (!q.card_named) return " (assumed, for times: name one with --gpu)";
  if (q.other_cards.empty()) return "";
  return fmt::format(" (others by that name: {})", q.other_cards);
}

std::string title_words(const Question& q) {
  std::string words =
      line(fmt::format("{}, {} x {}, {}, on {}{}{}", q.spec.name, q.batch, q.seq, q.training ? "training" : "inference",
                       q.gpus > 1 ? fmt::format("{} x ", q.gpus) : "", q.card->title, card_note(q)));
  for (const std::string& note : q.notes) words += line("(" + note + ")");
  return words;
}

std::string room_words(const Question& q) {
  const Room& room = q.room;
  std::string words =
      line(fmt::format("memory of {:<14} {:>12}   --memory", q.gpus > 1 ? "each card" : "the card", gb(room.memory)));
  words += line(fmt::format("  {:<22} {:>12}   --context", "CUDA context", gb(room.context)));
  words += line(fmt::format("  {:<22} {:>12}   --fragmentation", "fragmentation", gb(room.fragmentation)));
  words += line(fmt::format("  {:<22} {:>12}   --reserve", "reserve, stays free", gb(room.reserve)));
  if (room.nccl) words += line(fmt::format("  {:<22} {:>12}   --nccl", "NCCL", gb(room.nccl)));
  words += line(fmt::format("  {:<22} {:>12}", "cuBLAS workspace", gb(room.workspace)));
  return words + line(fmt::format("{:<24} {:>12}", "left", gb(room.left())));
}

std::string row_words(const Row& row, const Row* before) {
  std::string saves = "-";
  if (before) {
    const std::uint64_t was = before->peak.total(), is = row.peak.total();
    saves = was >= is ? gb(was - is) : "-" + gb(is - was);
  }
  std::string costs = time_words(row.seconds);
  return line(fmt::format("{:<34} {:>12} {:>12} {:>10}  {:>11}   {}{}", (before ? "+ " : "") + row.what,
                          gb(row.peak.total()), saves, costs, row.host_bytes ? gb(row.host_bytes) : "-", row.numbers,
                          row.fits ? ", fits" : ""));
}

// What of the host is known, and what is assumed.
std::string host_words(const Question& q) {
  const bool assumed = q.host_gb_per_s == plan::host_gb_per_s(*q.card);
  return fmt::format("of the processor's work it counts what it moves in host memory, at {} GB/s{}", q.host_gb_per_s,
                     assumed ? ", see --host-bandwidth" : "");
}

std::string most_words(const Question& q, const Most& most) {
  std::string words = "with these levers: ";
  if (!q.training)
    return line(words + fmt::format("up to {} sequences of {} tokens, or {} of up to {}", most.batch_at_once, q.seq,
                                    q.batch, most.seq));
  if (most.micro_batch)
    words += fmt::format("any batch{}, up to {} at once",
                         most.unit > 1 ? fmt::format(" that {} divides", most.unit) : "", most.batch_at_once);
  else
    words += fmt::format("a batch of up to {}", most.batch_at_once);
  return line(words + fmt::format(", or sequences of up to {} tokens{}", most.seq,
                                  most.seq == q.spec.positions ? ", the model's longest" : ""));
}

std::string runs_words(const Question& q, const Row& row) {
  std::string words;
  if (row.cards < q.gpus)
    words += line(fmt::format("  (uses {} of the {} cards{})", row.cards, q.gpus,
                              row.cards == 1 ? fmt::format(", with no NCCL: {} are left there", gb(row.left)) : ""));
  return words + line("  " + row.command) +
         line("  (that plans it, to the byte, on any machine, and builds what it needs; without --plan it runs)");
}

}  // namespace

namespace {

std::string torch_words(const char* what, const std::optional<PyTorchPeak>& peak) {
  if (!peak) return line(fmt::format("  {:<22} {:>12}   no closed form for these settings", what, "-"));
  return line(fmt::format("  {:<22} {:>12}   at its fullest in the {}{}", what, gb(peak->bytes.total()), peak->moment,
                          peak->checked ? "" : "; not checked against PyTorch"));
}

// With --largest seq.
std::string longest_words(const Question& q, const Answer& answer) {
  if (!answer.longest) return "";
  const Row& row = *answer.longest;
  return "\n" +
         line(fmt::format("the longest sequence that any combination fits: {} tokens{}; of these the cheapest:",
                          answer.longest_seq, answer.longest_seq == q.spec.positions ? ", the model's longest" : "")) +
         line("  " + row.options) +
         line(fmt::format("  {:<22} {:>12}   no step takes less than {}{}", "peak", gb(row.peak.total()),
                          time_words(row.seconds),
                          row.host_bytes ? fmt::format("; {} of host memory", gb(row.host_bytes)) : "")) +
         runs_words(q, row);
}

// To fine-tune the model instead.
std::string adapters_words(const Answer& answer) {
  if (answer.adapters.empty()) return "";
  std::string words = "\n" + line("to fine-tune it with adapters beside frozen weights, on one card (chapter 14):");
  for (const Row& row : answer.adapters) {
    const std::uint64_t peak = row.peak.total();
    words += line(fmt::format("  {:<22} {:>12}   {}", row.what, gb(peak),
                              row.fits ? fmt::format("fits, {} more are free", gb(row.left - peak))
                                       : fmt::format("{} too many", gb(peak - row.left))));
  }
  for (const Row& row : answer.adapters) words += line("  " + row.command);
  return words;
}

// What the cheapest is called elsewhere, and what PyTorch itself needs.
std::string elsewhere_words(const Answer& answer) {
  std::string words;
  if (answer.cheapest) {
    words += "\n" + line("the cheapest in other words:");
    for (const std::string& text : lines_of(answer.elsewhere)) words += line("  " + text);
  }
  const std::string peaks =
      torch_words("as it is", answer.torch_as_is) + torch_words("the cheapest", answer.torch_cheapest);
  if (answer.torch_as_is || answer.cheapest)
    words += "\n" + line("what PyTorch itself needs (eager, SDPA, torch.optim.AdamW, 16 bits by autocast):") + peaks +
             line("  (a closed form of its operators' tensors, without the context: docs/fit_pytorch.md)");
  return words;
}

}  // namespace

bool fits(const Answer& answer) {
  if (const auto& pipeline = answer.pipeline) return pipeline->as_is.fits() || pipeline->changed || pipeline->largest;
  if (const auto& images = answer.images) return images->as_is.fits() || images->changed || images->largest;
  if (const auto& serving = answer.serving)
    return serving->as_is.fits() || !serving->changed.empty() || serving->largest;
  if (answer.reader) return answer.reader->best() != nullptr;
  if (answer.generation)
    return answer.generation->as_is.fits() || answer.generation->fewer || answer.generation->largest || answer.fits();
  return answer.fits();
}

bool fits_as_it_is(const Answer& answer) {
  if (answer.images) return answer.images->as_is.fits();
  if (answer.pipeline) return answer.pipeline->as_is.fits();
  if (answer.serving) return answer.serving->as_is.fits();
  if (answer.reader) return answer.reader->as_is.fits();
  return answer.generation ? answer.generation->as_is.fits() : answer.as_is.fits;
}

std::string first_words(const Question& question, const Answer& answer) {
  if (answer.images) return first_words(question, *answer.images);
  if (answer.pipeline) return first_words(question, *answer.pipeline);
  if (answer.serving) return first_words(question, *answer.serving);
  return answer.reader ? first_words(question, *answer.reader) : first_words(question, *answer.generation, &answer);
}

std::string line_of(const Question& question, const Answer& answer) {
  if (answer.images)
    return fmt::format("{:>6} GiB   {}\n", gib(question.room.memory), first_line(question, *answer.images));
  if (answer.serving)
    return fmt::format("{:>6} GiB   {}\n", gib(question.room.memory), first_line(question, *answer.serving));
  if (answer.pipeline)
    return fmt::format("{:>6} GiB   {}\n", gib(question.room.memory), first_line(question, *answer.pipeline));
  return fmt::format(
      "{:>6} GiB   {}\n", gib(question.room.memory),
      answer.reader ? first_line(question, *answer.reader) : first_line(question, *answer.generation, &answer));
}

std::string words_of(const Question& q, const Answer& answer) {
  const char* unit = q.training ? "step" : "token";
  std::string words = title_words(q) + "\n" + room_words(q) + "\n";

  const Row& is = answer.as_is;
  const std::uint64_t peak = is.peak.total(), left = is.left;
  words += line(fmt::format("as it is ({}): {}", is.options,
                            is.fits        ? fmt::format("fits, {} more are free", gb(left - peak))
                            : peak <= left ? fmt::format("{} does not compute so", q.card->title)
                                           : fmt::format("does not fit, {} too many", gb(peak - left))));
  words +=
      line(fmt::format("  {:<22} {:>12}   no {} takes less than {}", "peak", gb(peak), unit, time_words(is.seconds)));
  words += categories(is.peak) + "\n";

  if (!answer.ladder.empty()) {
    words += line("the ladder: what fits with the fewest changes");
    words += line(
        fmt::format("{:<34} {:>12} {:>12} {:>10}  {:>11}   numbers", "", "peak", "saves", "least time", "on the host"));
    Row first = is;
    first.what = "as it is";
    words += row_words(first, nullptr);
    const Row* before = &first;
    for (const Row& row : answer.ladder) words += row_words(row, before), before = &row;
    words += runs_words(q, answer.ladder.back());
    if (answer.ladder.back().host_bytes) words += line("  (least time is a bound: " + host_words(q) + ")");
    words += "\n";
  }
  if (answer.cheapest) {
    const Row& row = *answer.cheapest;
    words += line(fmt::format("the cheapest of {} {}, by a lower bound: no {} takes less than {}", answer.combinations,
                              q.training ? "combinations" : "ways", unit, time_words(row.seconds)));
    words += line(fmt::format("  {}", row.options));
    words += line(fmt::format("  {:<22} {:>12}   {} more free; {}{}", "peak", gb(row.peak.total()),
                              gb(row.left - std::min(row.left, row.peak.total())), row.numbers,
                              row.host_bytes ? fmt::format("; {} of host memory", gb(row.host_bytes)) : ""));
    words += categories(row.peak);
    words += runs_words(q, row);
    words += most_words(q, *answer.most);
    words += line(fmt::format("(A bound is no prediction: real {}s take longer, often several times{}.)", unit,
                              row.host_bytes ? "; " + host_words(q) : ""));
  } else {
    words += line("nothing fits" + std::string(answer.closest ? "; what comes closest:" : ""));
    if (answer.closest) {
      const Row& row = *answer.closest;
      words += line(fmt::format("  {}", row.options));
      const bool too_many = row.peak.total() > row.left || !row.host_bytes;
      words += line(fmt::format(
          "  {:<22} {:>12}   {}", "peak", gb(row.peak.total()),
          too_many ? fmt::format("{} too many", gb(row.peak.total() - std::min(row.left, row.peak.total())))
                   : fmt::format("and {} of host memory, of which there are {}", gb(row.host_bytes), gb(q.room.host))));
      words += categories(row.peak);
    }
    if (answer.with_host_memory) {
      const Row& row = *answer.with_host_memory;
      words += line(fmt::format("it fits beside {} of host memory, and beside no less (--host-memory says {}):",
                                gb(row.host_bytes), gb(q.room.host)));
      words += line(fmt::format("  {}", row.options));
      words += line(fmt::format("  {:<22} {:>12}   {}", "peak", gb(row.peak.total()), row.numbers));
      words += runs_words(q, row);
    }
  }
  words += longest_words(q, answer);
  words += adapters_words(answer);
  if (q.training) words += elsewhere_words(answer);
  return words;
}

std::string table_of(const std::vector<Question>& questions, const std::vector<Answer>& answers) {
  std::string words = title_words(questions.front()) +
                      line(fmt::format("{:>11} {:>12}  {:<9} {:>12} {:>10}  {:>11}   {}", "memory", "left", "as it is",
                                       "peak", "least time", "on the host", "the cheapest that fits, by that bound"));
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Room& room = questions[i].room;
    const Answer& a = answers[i];
    const Row* const row = a.cheapest ? &*a.cheapest : a.closest ? &*a.closest : nullptr;
    words += fmt::format("{:>11} {:>12}  {:<9} ", gb(room.memory), gb(room.left()), a.as_is.fits ? "fits" : "no");
    if (row)
      words += fmt::format("{:>12} {:>10}  {:>11}   ", gb(row->peak.total()), time_words(row->seconds),
                           row->host_bytes ? gb(row->host_bytes) : "-");
    words += line(a.fits() ? row->options : "nothing" + (row ? "; the closest: " + row->options : std::string()));
  }
  return words;
}

}  // namespace oomlab::fit
