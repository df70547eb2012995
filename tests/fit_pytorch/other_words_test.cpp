// What the levers are called elsewhere.

#include <gtest/gtest.h>

#include <random>

#include "plan/elsewhere.h"
#include "plan/levers.h"

namespace oomlab::fit {
namespace {

using plan::Levers, plan::Work;

Work work(std::size_t batch = 8) { return {.spec = nn::parse_transformer("gpt:12-4-128"), .batch = batch, .seq = 256}; }

std::string text(const Levers& levers, const Work& of = work()) {
  std::string all;
  for (const std::string& line : lines_of(plan::elsewhere(of, levers))) all += line + "\n";
  return all;
}

void expect_words(const std::string& in, std::initializer_list<const char*> words) {
  for (const char* const word : words) EXPECT_NE(in.find(word), std::string::npos) << word << " in\n" << in;
}
void expect_no_words(const std::string& in, std::initializer_list<const char*> words) {
  for (const char* const word : words) EXPECT_EQ(in.find(word), std::string::npos) << word << " in\n" << in;
}

TEST(OtherWords, TextbookSaysLittle) {
  const std::string plain = text({});
  expect_words(plain, {"PyTorch\n", "per_device_train_batch_size=8", "\"train_micro_batch_size_per_gpu\": 8",
                       "optim=\"adamw_torch_fused\""});
  expect_no_words(plain, {"accumulation", "bf16", "fp16", "checkpoint", "zero", "torchrun", "hook"});
}

TEST(OtherWords, MicroBatches) {
  expect_words(text({.micro_batch = 2}), {"gradient_accumulation_steps=4", "\"gradient_accumulation_steps\": 4",
                                          "per_device_train_batch_size=2", "xs.split(2)"});
  Levers levers{.micro_batch = 2};
  levers.ranks.dp = 2;
  expect_words(text(levers), {"gradient_accumulation_steps=2", "DistributedDataParallel"});
}

TEST(OtherWords, Precision) {
  Levers levers{.precision = DType::bf16};
  levers.optimizer.weights = nn::WeightForm::master;
  expect_words(text(levers), {"torch.autocast(\"cuda\", torch.bfloat16)", "bf16=True", "\"bf16\": {\"enabled\": true}",
                              "autocast keeps FP32 weights"});
  expect_no_words(text(levers), {"GradScaler"});
  levers.precision = DType::fp16;
  expect_words(text(levers), {"torch.float16", "GradScaler", "fp16=True", "\"fp16\": {\"enabled\": true}"});
  levers.precision = DType::bf16;
  levers.optimizer.weights = nn::WeightForm::stored;
  expect_words(text(levers), {"model.to(torch.bfloat16)", "DeepSpeed's bf16 has an FP32 master copy"});
}

// Who rounds at random is torchao. bitsandbytes and torch.optim round to nearest: never beside such weights.
TEST(OtherWords, StochasticRounding) {
  Levers levers{.precision = DType::bf16};
  levers.optimizer.weights = nn::WeightForm::stochastic;
  expect_words(text(levers), {"model.to(torch.bfloat16)", "torchao.optim._AdamW(", "bf16_stochastic_round=True"});
  for (const bool wide : {false, true}) {
    levers.optimizer = {nn::UpdateRule::adamw8, nn::WeightForm::stochastic, wide};
    expect_words(text(levers), {"torchao.optim.AdamW8bit(model.parameters(), bf16_stochastic_round=True)",
                                "optim=\"adamw_torch_8bit\", optim_args=\"bf16_stochastic_round=True\""});
  }
  for (const nn::UpdateRule rule : {nn::UpdateRule::adafactor, nn::UpdateRule::sgd}) {
    levers.optimizer = {rule, nn::WeightForm::stochastic};
    expect_words(text(levers), {"with stochastic rounding: torchao has it for AdamW only"});
  }
  for (const nn::UpdateRule rule :
       {nn::UpdateRule::adamw, nn::UpdateRule::adamw8, nn::UpdateRule::adafactor, nn::UpdateRule::sgd}) {
    levers.optimizer.rule = rule;
    expect_no_words(text(levers), {"bitsandbytes.optim", "bnb", "optimizer = torch.optim", "optim=\"adafactor\"",
                                   "optim=\"sgd\"", "optim=\"adamw_torch_fused\""});
  }
}

TEST(OtherWords, AttentionAndLoss) {
  for (const auto attention : {nn::AttentionForm::textbook, nn::AttentionForm::tiled,
                               nn::AttentionForm::fused}) {  // the default, and no worse
    expect_words(text({.attention = attention}), {"F.scaled_dot_product_attention(q, k, v", "\"sdpa\"  # the default"});
    expect_no_words(text({.attention = attention}), {"eager\"", "softmax(-1)"});
  }
  expect_words(text({}), {"the textbook's attention, which keeps its scores"});
  expect_words(text({.attention = nn::AttentionForm::fused}),
               {"attn_implementation=\"sdpa\"", "scaled_dot_product_attention(q, k, v, is_causal=True)"});
  expect_no_words(text({.attention = nn::AttentionForm::fused}), {"nearest"});
  expect_words(text({.attention = nn::AttentionForm::tiled}), {"attn_implementation=\"sdpa\"", "nearest"});
  Work bert = work();
  bert.spec = nn::parse_transformer("bert:4-4-128");
  expect_words(text({.attention = nn::AttentionForm::fused}, bert), {"is_causal=False"});
  expect_words(text({.loss = nn::LossForm::chunked}),
               {"F.linear_cross_entropy", "LinearCrossEntropyOptions()", "use_liger_kernel=True"});
  expect_words(text({.selective_recompute = true}), {"have no switch", "activation_memory_budget"});
}

TEST(OtherWords, Recomputing) {
  expect_words(text({.recompute = 1}), {"checkpoint(layer, x, use_reentrant=False)", "gradient_checkpointing=True"});
  expect_no_words(text({.attention = nn::AttentionForm::fused, .recompute = 1}), {"counterpart"});
  expect_words(text({.recompute = 5}), {"checkpoint_sequential(layers, 3, x", "segments of 5 layers"});
  expect_words(text({.solved = true}), {"gradient_checkpointing=True", "solved for the budget: the nearest is"});
}

TEST(OtherWords, Optimizers) {
  Levers levers;
  levers.optimizer.rule = nn::UpdateRule::adamw8;
  expect_words(text(levers),
               {"AdamW8bit", "optim=\"adamw_bnb_8bit\"", "the Trainer keeps those of embeddings in 32 bits"});
  levers.optimizer.wide_embeddings = true;
  expect_words(text(levers), {"\"optim_bits\": 32"});
  expect_no_words(text(levers), {"the Trainer keeps"});
  levers.optimizer = {.rule = nn::UpdateRule::adafactor};
  expect_words(text(levers), {"torch.optim.Adafactor", "optim=\"adafactor\""});
  levers.optimizer.rule = nn::UpdateRule::sgd;
  expect_words(text(levers), {"torch.optim.SGD", "optim=\"sgd\""});
}

TEST(OtherWords, Gradients) {
  Levers levers{.gradients = nn::GradientLife::optimizer_in_backward};
  expect_words(text(levers), {"register_post_accumulate_grad_hook(used)", "\"adalomo\""});
  levers.optimizer.rule = nn::UpdateRule::sgd;
  expect_words(text(levers), {"optim=\"lomo\", which is such a plain SGD"});
  levers = {.gradients = nn::GradientLife::offloaded};
  expect_words(text(levers),
               {"\"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}", "CPUOffloadOptimizer"});
  expect_no_words(text(levers), {"torch.optim.AdamW(model"});
}

TEST(OtherWords, Ranks) {
  Levers levers;
  levers.ranks = {.tp = 2, .dp = 4, .pp = 3, .zero = 1};
  expect_words(text(levers),
               {"24 in all", "parallelize_module", "\"autotp_size\": 2", "Schedule1F1B", "num_stages=3",
                "ZeroRedundancyOptimizer", "\"zero_optimization\": {\"stage\": 1}", "per_device_train_batch_size=2"});
  levers.ranks.one_forward_one_backward = false;
  expect_words(text(levers), {"ScheduleGPipe"});
  levers.ranks = {.dp = 8, .zero = 2};
  expect_words(text(levers), {"reshard_after_forward=False", "\"stage\": 2"});
  levers.ranks = {.tp = 2, .dp = 4, .zero = 3};
  expect_words(text(levers), {"fully_shard(model)", "\"stage\": 3", "ZeRO 0 to 2"});
}

TEST(OtherWords, LongSequences) {
  expect_words(text({.mlp_tiles = 6}),
               {"x.chunk(6, dim=1)", "TiledMLP.apply(", "num_shards=6", "tiled_mlp_num_shards: 6"});
  Levers levers;
  levers.ranks.tp = 2;
  levers.sequence_parallel = true;
  Levers ring;
  ring.ranks.cp = 4;
  expect_words(text(ring), {"set_rotate_method(", "context_parallel(", "positions", "ParallelismConfig(cp_size=4, ",
                            "--context-parallel-size 4"});
  Levers ulysses = ring;
  ulysses.ranks.context = nn::ContextForm::ulysses;
  expect_words(text(ulysses), {"\"sequence_parallel_size\": 4", "data_parallel_size", "UlyssesSPAttentionHF"});
  expect_words(text(levers),
               {"SequenceParallel()", "Shard(1)", "Megatron-LM has --sequence-parallel", "tensor_parallel_dim: "});
  expect_words(text({.pack = true}), {"varlen_attn(", "DataCollatorWithFlattening()", "padding_free=True"});
}

// Whatever the combination: lines are lines, and what differs from the textbook is named.
TEST(OtherWords, AnyCombination) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    Levers levers;
    levers.precision = static_cast<DType>(random() % 3);
    levers.micro_batch = random() % 2 ? 2 : 0;
    levers.attention = static_cast<nn::AttentionForm>(random() % 3);
    levers.loss = static_cast<nn::LossForm>(random() % 2);
    levers.selective_recompute = random() % 2;
    levers.mlp_tiles = 1 + random() % 2;
    levers.pack = random() % 2;
    levers.recompute = random() % 4;
    levers.optimizer.rule = static_cast<nn::UpdateRule>(random() % 4);
    levers.optimizer.weights = static_cast<nn::WeightForm>(random() % 3);
    levers.gradients = static_cast<nn::GradientLife>(random() % 3);
    levers.ranks.dp = random() % 2 ? 4 : 1;
    levers.ranks.zero = levers.ranks.dp > 1 ? static_cast<int>(random() % 4) : 0;
    for (const std::string& line : lines_of(plan::elsewhere(work(), levers))) {
      EXPECT_FALSE(line.empty());
      EXPECT_EQ(line.find('\n'), std::string::npos) << line;
      EXPECT_EQ(line.find("{{"), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace oomlab::fit
