#pragma once
// "The same in other words": what a combination of the course's levers is called in PyTorch, in Hugging Face's
// TrainingArguments and in a DeepSpeed configuration. What has no counterpart there is said, and what is only near.
//
// PyTorch's names are those of 2.15. The others are from https://huggingface.co/docs/transformers/main_classes/trainer,
// https://www.deepspeed.ai/docs/config-json, and the documentation of bitsandbytes and torchao
// (torchao/optim/README.md). Nothing of them is run here.

#include <fmt/format.h>

#include <string>
#include <vector>

#include "../../chapters/16_capstone/levers.h"

namespace oomlab::fit {

/// Lines of text, one setting each. A list may be empty: then its defaults do it.
struct OtherWords {
  std::vector<std::string> pytorch;    ///< Python
  std::vector<std::string> trainer;    ///< TrainingArguments: "name=value"
  std::vector<std::string> deepspeed;  ///< members of its JSON
  std::vector<std::string> nowhere;    ///< sentences: what has no counterpart, or only one that differs
};

namespace detail {

class Translation {
 public:
  Translation(const capstone::Work& work, const capstone::Levers& levers) : work_(work), levers_(levers) {}

  OtherWords all() {
    batch();
    precision();
    attention_and_loss();
    recomputing();
    optimizer();
    gradients();
    ranks();
    return words_;
  }

 private:
  template <class... T>
  void torch(fmt::format_string<T...> text, T&&... values) {
    words_.pytorch.push_back(fmt::format(text, std::forward<T>(values)...));
  }
  template <class... T>
  void trainer(fmt::format_string<T...> text, T&&... values) {
    words_.trainer.push_back(fmt::format(text, std::forward<T>(values)...));
  }
  template <class... T>
  void deepspeed(fmt::format_string<T...> text, T&&... values) {
    words_.deepspeed.push_back(fmt::format(text, std::forward<T>(values)...));
  }
  void nowhere(std::string text) { words_.nowhere.push_back(std::move(text)); }

  void batch() {
    const std::size_t micro = capstone::micro_batch_of(work_, levers_),
                      count = capstone::micro_batches_of(work_, levers_);
    trainer("per_device_train_batch_size={}", micro);
    deepspeed("\"train_micro_batch_size_per_gpu\": {}", micro);
    if (count == 1) return;
    torch("for x, y in zip(xs.split({0}), ys.split({0})): (loss_sum(x, y) / targets_of_all).backward()", micro);
    torch("optimizer.step()  # after {} micro-batches", count);
    trainer("gradient_accumulation_steps={}", count);
    deepspeed("\"gradient_accumulation_steps\": {}", count);
  }

  void precision() {
    if (levers_.precision == DType::fp32) return;
    const bool half = levers_.precision == DType::fp16;
    const char* const name = name_of(levers_.precision);
    switch (levers_.optimizer.weights) {
      case nn::WeightForm::master:
        torch("with torch.autocast(\"cuda\", torch.{}): loss = …", torch_word(levers_.precision));
        if (half) torch("scaler = torch.amp.GradScaler(\"cuda\")  # scale(loss).backward(), step(optimizer), update()");
        trainer("{}=True", name);
        deepspeed("\"{}\": {{\"enabled\": true}}", name);
        nowhere(
            "autocast keeps FP32 weights and gradients, and copies of 16 bits while they are needed; here, as in "
            "DeepSpeed, "
            "weights and gradients have 16 bits beside an FP32 master copy");
        return;
      case nn::WeightForm::stored:
        torch("model = model.to(torch.{})", torch_word(levers_.precision));
        trainer("{}=False, and from_pretrained(…, dtype=torch.{})", name, torch_word(levers_.precision));
        nowhere(fmt::format("DeepSpeed's {} has an FP32 master copy; here there is none", name));
        return;
      case nn::WeightForm::stochastic:
        torch("model = model.to(torch.{})", torch_word(levers_.precision));
        trainer("{}=False, and from_pretrained(…, dtype=torch.{})", name, torch_word(levers_.precision));
        nowhere(fmt::format("DeepSpeed's {} has an FP32 master copy; here there is none", name));
        return;
    }
  }

  void attention_and_loss() {
    torch("y = F.scaled_dot_product_attention(q, k, v, is_causal={})", work_.spec.bert() ? "False" : "True");
    trainer("(model) attn_implementation=\"sdpa\"  # the default");
    if (levers_.attention == nn::AttentionForm::textbook)
      nowhere(
          "the textbook's attention, which keeps its scores: scaled_dot_product_attention, the default, keeps none and "
          "is no slower, so there is no reason to write the textbook's");
    if (levers_.attention == nn::AttentionForm::tiled)
      nowhere("attention by tiles of several kernels: the nearest is scaled_dot_product_attention, one kernel");
    if (levers_.loss == nn::LossForm::chunked) {
      torch(
          "loss = F.linear_cross_entropy(hidden, head.weight, targets, options=torch.nn.LinearCrossEntropyOptions())");
      trainer("use_liger_kernel=True");
      nowhere("how many rows a chunk of logits has is each library's own choice");
    }
    if (levers_.lean)
      nowhere(
          "keeping nothing that is cheap to compute again (norms, activation functions): eager PyTorch, the Trainer "
          "and "
          "DeepSpeed have no switch; torch.compile decides so by itself, with "
          "torch._functorch.config.activation_memory_budget");
  }

  void recomputing() {
    if (levers_.solved) {
      torch("x = checkpoint(layer, x, use_reentrant=False)  # every layer: the nearest");
      trainer("gradient_checkpointing=True");
      nowhere(
          "a schedule solved for the budget: the nearest is every layer, which computes more again and needs less or "
          "more memory");
      return;
    }
    if (levers_.recompute == 0) return;
    if (levers_.recompute == 1) {
      torch("x = checkpoint(layer, x, use_reentrant=False)  # torch.utils.checkpoint");
    } else {
      const std::size_t segments = (work_.spec.layers + levers_.recompute - 1) / levers_.recompute;
      torch("x = checkpoint_sequential(layers, {}, x, use_reentrant=False)  # the last segment is not recomputed",
            segments);
      nowhere(fmt::format("segments of {} layers: TrainingArguments checkpoint every layer", levers_.recompute));
    }
    trainer("gradient_checkpointing=True");
  }

  void optimizer() {
    const nn::OptimizerForm& form = levers_.optimizer;
    if (levers_.gradients == nn::GradientLife::sent_to_host) return;  // gradients() names it
    if (form.weights == nn::WeightForm::stochastic) return rounding_optimizer();
    switch (form.rule) {
      case nn::UpdateRule::adamw:
        torch("optimizer = torch.optim.AdamW(model.parameters(), fused=True)");
        trainer("optim=\"adamw_torch_fused\"");
        return;
      case nn::UpdateRule::adamw8:
        torch("optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())");
        trainer("optim=\"adamw_bnb_8bit\"");
        if (form.wide_embeddings)
          torch(
              "bitsandbytes.optim.GlobalOptimManager.get_instance().register_module_override(embedding, \"weight\", "
              "{{\"optim_bits\": 32}})");
        else
          nowhere(
              "8-bit moments of embeddings: the Trainer keeps those of embeddings in 32 bits, as --wide-embeddings "
              "does");
        nowhere("DeepSpeed takes such an optimizer from its caller: it has no name for it in its JSON");
        return;
      case nn::UpdateRule::adafactor:
        torch("optimizer = torch.optim.Adafactor(model.parameters())");
        trainer("optim=\"adafactor\"");
        return;
      case nn::UpdateRule::sgd:
        torch("optimizer = torch.optim.SGD(model.parameters())");
        trainer("optim=\"sgd\"");
        return;
    }
  }

  // Of the libraries named here only torchao's AdamW rounds at random. Others round to nearest, where an update of less
  // than half a step of BF16 is lost.
  void rounding_optimizer() {
    const nn::OptimizerForm& form = levers_.optimizer;
    switch (form.rule) {
      case nn::UpdateRule::adamw:
        torch("optimizer = torchao.optim._AdamW(model.parameters(), bf16_stochastic_round=True)");
        nowhere(
            "FP32 moments beside BF16 weights: torchao's _AdamW keeps them in the weights' 16 bits; TrainingArguments "
            "have no name for it");
        break;
      case nn::UpdateRule::adamw8:
        torch("optimizer = torchao.optim.AdamW8bit(model.parameters(), bf16_stochastic_round=True)");
        trainer("optim=\"adamw_torch_8bit\", optim_args=\"bf16_stochastic_round=True\"");
        if (form.wide_embeddings)
          nowhere(
              "32-bit moments of embeddings: torchao's AdamW8bit has no setting for them; the nearest is "
              "torchao.optim._AdamW for the embedding, with moments of 16 bits");
        nowhere("bitsandbytes' AdamW8bit rounds BF16 weights to nearest: there small updates vanish");
        break;
      case nn::UpdateRule::adafactor:
      case nn::UpdateRule::sgd:
        nowhere(fmt::format(
            "{} with stochastic rounding: torchao has it for AdamW only, and torch.optim rounds to nearest, "
            "where small updates vanish",
            form.rule == nn::UpdateRule::sgd ? "SGD" : "Adafactor"));
        return;
    }
    nowhere("DeepSpeed takes such an optimizer from its caller: it has no name for it in its JSON");
  }

  void gradients() {
    switch (levers_.gradients) {
      case nn::GradientLife::always: return;
      case nn::GradientLife::used_at_once:
        torch("each = {{p: make_optimizer([p]) for p in model.parameters()}}  # one of the above for each parameter");
        torch("def used(p): each[p].step(); each[p].zero_grad()  # set_to_none is the default");
        torch("for p in each: p.register_post_accumulate_grad_hook(used)");
        nowhere(levers_.optimizer.rule == nn::UpdateRule::sgd
                    ? "a step within the backward pass: the Trainer has optim=\"lomo\", which is such a plain SGD; "
                      "DeepSpeed has none"
                    : "a step within the backward pass: the Trainer has it for its own rules only (optim=\"lomo\", "
                      "\"adalomo\"), DeepSpeed has none");
        return;
      case nn::GradientLife::sent_to_host:
        torch(
            "optimizer = torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, "
            "offload_gradients=True)");
        trainer("deepspeed=\"ds_config.json\"");
        if (levers_.ranks.ranks() == 1)
          deepspeed(
              "\"zero_optimization\": {{\"stage\": 2, \"offload_optimizer\": {{\"device\": \"cpu\", \"pin_memory\": "
              "true}}}}");
        nowhere("ZeRO-Offload sends gradients by buckets, not by layers: what waits on the device differs");
        return;
    }
  }

  void ranks() {
    const capstone::Layout& l = levers_.ranks;
    if (l.ranks() == 1) return;
    torch("torchrun --nproc-per-node {} …  # on each node as many as it has GPUs, {} in all", l.ranks(), l.ranks());
    if (l.tp > 1) {
      torch(
          "parallelize_module(layer, mesh[\"tp\"], {{\"query\": ColwiseParallel(), \"projection\": RowwiseParallel(), "
          "…}})  # {} parts",
          l.tp);
      trainer("(model) from_pretrained(…, tp_plan=\"auto\"), and torchrun");
      deepspeed("\"tensor_parallel\": {{\"autotp_size\": {}}}", l.tp);
      if (l.zero == 3) nowhere("DeepSpeed's AutoTP goes with ZeRO 0 to 2, not with 3");
    }
    if (l.pp > 1) {
      torch("schedule = {}(PipelineStage(…), n_microbatches={})  # torch.distributed.pipelining, {} stages",
            l.one_forward_one_backward ? "Schedule1F1B" : "ScheduleGPipe", capstone::micro_batches_of(work_, levers_),
            l.pp);
      nowhere(
          fmt::format("{} stages of a pipeline: TrainingArguments have no setting; DeepSpeed has one in code, "
                      "PipelineModule(layers, num_stages={})",
                      l.pp, l.pp));
    }
    if (l.dp == 1) return;
    switch (l.zero) {
      case 0: torch("model = DistributedDataParallel(model)"); break;
      case 1: torch("optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)"); break;
      case 2:
        torch("fully_shard(model, reshard_after_forward=False)  # keeps whole weights through a step only");
        break;
      default: torch("for layer in layers: fully_shard(layer)"), torch("fully_shard(model)"); break;
    }
    if (l.zero == 0) return;
    trainer("deepspeed=\"ds_config.json\"");
    deepspeed("\"zero_optimization\": {{\"stage\": {}}}", l.zero);
    if (l.zero == 2)
      nowhere("ZeRO-2 is nearest to fully_shard(reshard_after_forward=False), which shards weights between steps, too");
  }

  const capstone::Work& work_;
  const capstone::Levers& levers_;
  OtherWords words_;
};

}  // namespace detail

/// What this combination is called elsewhere. Of a combination that capstone::refused() refuses: of each of its parts.
inline OtherWords other_words(const capstone::Work& work, const capstone::Levers& levers) {
  return detail::Translation(work, levers).all();
}

/// The same as lines to print, "PyTorch", "TrainingArguments", "DeepSpeed" and "no counterpart" as headings; a list
/// that is empty is left out.
inline std::vector<std::string> lines_of(const OtherWords& words) {
  std::vector<std::string> lines;
  const auto part = [&](const char* heading, const std::vector<std::string>& list) {
    if (list.empty()) return;
    lines.push_back(heading);
    for (const std::string& line : list) lines.push_back("  " + line);
  };
  part("PyTorch", words.pytorch);
  part("Hugging Face TrainingArguments", words.trainer);
  part("DeepSpeed", words.deepspeed);
  part("no counterpart, or only a near one", words.nowhere);
  return lines;
}

}  // namespace oomlab::fit
