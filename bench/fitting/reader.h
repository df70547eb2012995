#pragma once
// What somebody's own program needs: transformers' modules in PyTorch, trained as the Trainer does it, whole or by
// peft's adapters. The bytes are plan/pytorch/huggingface.h's; here stands which settings are asked for, what else of a
// card is taken, and which changes make it fit.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/pytorch/huggingface.h"

namespace oomlab::fit {

struct Question;
enum class Framework;

/// What is trained.
enum class Method {
  full,   ///< all parameters
  lora,   ///< adapters beside frozen weights of 16 bits
  qlora,  ///< adapters beside weights of 4 bits
};
inline constexpr std::array kMethods{Method::full, Method::lora, Method::qlora};
/// "full", "lora", "qlora": for --method and JSON.
const char* name_of(Method method);

/// "adamw_torch_fused", …: as TrainingArguments' optim has it.
const char* name_of(HfOptimizer optimizer);
inline constexpr std::array kHfOptimizers{HfOptimizer::adamw_fused, HfOptimizer::adamw_foreach, HfOptimizer::adamw_8bit,
                                          HfOptimizer::adamw_paged, HfOptimizer::adafactor,     HfOptimizer::sgd};

/// "full", "chunked", "liger": for --loss.
const char* name_of(HfLoss loss);
inline constexpr std::array kHfLosses{HfLoss::full, HfLoss::chunked, HfLoss::liger};

/// What the question says of the program. Nothing: its default, which differs between methods.
struct ReaderSettings {
  Method method = Method::full;
  std::uint64_t lora_rank = 16;
  std::uint64_t accumulation = 1;  ///< micro-batches of a step
  std::optional<DType> weights;    ///< default: FP32; beside adapters the 16 bits in which it computes
  std::optional<bool> checkpoint;  ///< default: only of QLoRA, as prepare_model_for_kbit_training() has it
  bool eager_attention = false;
  HfLoss loss = HfLoss::full;
  HfOptimizer optimizer = HfOptimizer::adamw_fused;  ///< the Trainer's default
  std::optional<HfParallel> sharding;                ///< of several cards; default: DDP where that fits, else FSDP2
  bool offload_optimizer = false, offload_weights = false;  ///< to host memory, by DeepSpeed
  bool expandable = false;                                  ///< PYTORCH_ALLOC_CONF=expandable_segments:True
};
/// "ddp", "fsdp", "zero1", …: for --sharding.
const char* name_of(HfParallel parallel);
inline constexpr std::array kSharding{HfParallel::ddp, HfParallel::fsdp2, HfParallel::zero1, HfParallel::zero2,
                                      HfParallel::zero3};
/// DeepSpeed's.
bool is_zero(HfParallel parallel);

/// A change to the program, in the order in which they are tried: first what costs least.
enum class Change {
  expandable,       ///< the allocator's segments grow
  checkpoint,       ///< gradient_checkpointing_enable()
  liger,            ///< Liger's loss, without all logits at once
  micro_batch,      ///< one sequence at a time
  eight_bits,       ///< bitsandbytes' AdamW
  paged,            ///< and its state in managed memory
  offload,          ///< DeepSpeed's ZeRO-3 with the optimizer in host memory. Only where --host-memory says how much
  offload_weights,  ///< and the weights
  narrow_weights,   ///< 16 bits without an FP32 copy: small updates vanish. Only where --numbers any allows it
};
inline constexpr std::array kChanges{Change::expandable,  Change::checkpoint,      Change::liger,
                                     Change::micro_batch, Change::eight_bits,      Change::paged,
                                     Change::offload,     Change::offload_weights, Change::narrow_weights};

/// What a program needs of a card, bytes.
struct Need {
  HfPeak peak{};                      ///< what is live
  std::uint64_t allocator = 0;        ///< reserved beyond that: by replay (plan/pytorch/reserved.h), or --fragmentation
  bool completed = false;             ///< `allocator` is known: where what is live is too much, it need not be
  std::uint64_t outside = 0;          ///< the context, cuBLAS's workspace, NCCL's buffers
  std::uint64_t spare = 0;            ///< the context may grow by this
  std::uint64_t memory = UINT64_MAX;  ///< of the card, if there is one
  std::uint64_t host = 0;             ///< of a node's host memory, at most: what is paged or offloaded
  std::uint64_t host_memory = UINT64_MAX;  ///< that there is, if it is known
  std::uint64_t live() const { return peak.bytes.total(); }
  /// What nvidia-smi would show.
  std::uint64_t device() const { return checked_sum(live(), checked_sum(allocator, outside)); }
  bool fits() const { return checked_sum(device(), spare) <= memory && host <= host_memory; }
};
/// `peak` without what the allocator splits, of a question's card.
Need need_of(const Question& question, HfPeak peak);
/// The same with it: of the allocations in `recorded`, under what the card has for them, and where that does not fit,
/// with no limit.
void complete(Need& need, const Question& question, const HfPeak& recorded, bool expandable);

/// One way to train, and what it needs.
struct Way : Need {
  Method method = Method::full;
  HfStep step{};
  bool expandable = false;
  std::uint64_t micro_batch = 1;       ///< sequences at a time, where that is a change
  std::vector<Change> changes{};       ///< to what was asked for
  std::vector<std::uint64_t> after{};  ///< live bytes without changes, and after each of them
};

/// The most that one way holds; 0: not even one.
struct LargestOf {
  Way way;  ///< at its largest; as asked where nothing fits
  std::uint64_t most = 0;
};

struct ReaderAnswer {
  Way as_is;
  std::optional<Way> changed{};      ///< the same method, with the fewest changes with which it fits
  std::vector<Way> adapters{};       ///< LoRA and QLoRA where they were not asked for; as few changes as make them fit
  std::vector<LargestOf> largest{};  ///< where it was asked for
  /// What to do: as it is, with changes, or an adapter's. Nothing: none of them fits.
  const Way* best() const;
};

/// Of training. Throws std::length_error where a figure does not fit 64 bits.
ReaderAnswer answer_reader(const Question& question);

/// At most kMostLines lines of at most kMostColumns columns, in the question's language. The first one is the answer.
std::string first_words(const Question& question, const ReaderAnswer& answer);
inline constexpr std::size_t kMostLines = 25, kMostColumns = 100;
/// "context 0.28 to 0.64 GiB assumed …": what `need` has outside the allocator, and where that is from.
std::string words_of_context(const Question& question, const Need& need);
/// Only the first one, without a line feed.
std::string first_line(const Question& question, const ReaderAnswer& answer);
/// A way's changes for people, what each costs (nothing: empty), and live bytes after each; 0 where they are not known.
struct ChangeStep {
  std::string words, costs;
  std::uint64_t after = 0;
};
std::vector<ChangeStep> change_steps(const Way& way, bool chinese);
/// What to write for one way, in the words of `framework`: at most kMostCodeLines lines.
std::vector<std::string> code_of(const Question& question, const Way& way, Framework framework);
inline constexpr std::size_t kMostCodeLines = 8;

}  // namespace oomlab::fit
