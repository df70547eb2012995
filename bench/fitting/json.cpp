// The answer as JSON: for programs, the page of site/fit among them.

#include "plan/json_writer.h"

#include "answer.h"
#include "options.h"
#include "words.h"

namespace oomlab::fit {
namespace {

void write(JsonWriter& json, const Row& row) {
  json.begin_object();
  json.member("what", row.what).member("options", row.options);
  json.member("command", row.command.empty() ? std::nullopt : std::optional(row.command));
  json.member("changes", row.changes).member("cards", row.cards);
  json.member("left_bytes", row.left).member("peak_bytes", row.peak.total());
  json.key("bytes").begin_object();
  for (std::size_t c = 0; c < kCategoryCount; ++c) json.member(name_of(Category(c)), row.peak.bytes[c]);
  json.end_object();
  json.member("least_seconds", row.seconds).member("host_bytes", row.host_bytes);
  json.member("numbers", row.numbers).member("fits", row.fits);
  json.end_object();
}

void write(JsonWriter& json, const std::vector<std::string>& lines) {
  json.begin_array();
  for (const std::string& text : lines) json.value(text);
  json.end_array();
}

// What leads from the program as it is to this way, and what to write for it.
void write_changes(JsonWriter& json, const Question& q, const Way& way) {
  json.member("live_before_bytes", way.after.empty() ? std::nullopt : std::optional(way.after.front()));
  json.key("changes").begin_array();
  for (const ChangeStep& change : change_steps(way, q.chinese)) {
    json.begin_object().member("what", change.words).member("costs", change.costs);
    json.member("live_bytes", change.after ? std::optional(change.after) : std::nullopt).end_object();
  }
  json.end_array().key("write").begin_object();
  const std::vector<std::string>& frameworks = words_of_options().at("--framework");
  for (std::size_t i = 0; i < frameworks.size(); ++i)
    json.key(frameworks[i]), write(json, code_of(q, way, static_cast<Framework>(i)));
  json.end_object();
}

void write(JsonWriter& json, const Question& q, const Way& way) {
  const HfStep& step = way.step;
  json.begin_object().member("method", name_of(way.method)).member("batch", step.batch).member("seq", step.seq);
  json.member("gradient_accumulation", step.micro_batches).member("gradient_checkpointing", step.checkpoint);
  json.member("weights", name_of(step.weights));
  json.member("autocast", step.autocast, [&](DType type) { json.value(name_of(type)); });
  json.member("optim", name_of(step.optimizer)).member("attention", step.eager_attention ? "eager" : "sdpa");
  json.member("lora_rank", step.lora ? step.lora->rank : 0).member("trained", way.peak.trained);
  json.key("bytes").begin_object();
  for (std::size_t c = 0; c < kCategoryCount; ++c) json.member(name_of(Category(c)), way.peak.bytes.bytes[c]);
  json.end_object();
  json.member("live_bytes", way.peak.bytes.total()).member("allocator_bytes", way.allocator);
  json.member("host_bytes", way.host)
      .member("outside_bytes", way.outside)
      .member("device_bytes", way.device())
      .member("spare_bytes", way.spare);
  json.member("moment", std::string(way.peak.moment)).member("checked", way.peak.checked).member("fits", way.fits());
  write_changes(json, q, way);
  json.end_object();
}

void write(JsonWriter& json, const Question& q, const ReaderAnswer& answer) {
  json.begin_object().member("line", first_line(q, answer)).member("fits", answer.best() != nullptr);
  json.key("as_is"), write(json, q, answer.as_is);
  json.member("changed", answer.changed, [&](const Way& way) { write(json, q, way); });
  json.key("adapters").begin_array();
  for (const Way& way : answer.adapters) write(json, q, way);
  json.end_array().key("largest").begin_array();
  for (const LargestOf& one : answer.largest) {
    json.begin_object().member("most", one.most).key("way"), write(json, q, one.way);
    json.end_object();
  }
  json.end_array().end_object();
}

void write(JsonWriter& json, const Generation& way) {
  const HfGeneration& asked = way.asked;
  json.begin_object()
      .member("batch", asked.batch)
      .member("prompt", asked.prompt)
      .member("new_tokens", asked.new_tokens);
  json.member("weights", name_of(asked.weights)).key("bytes").begin_object();
  for (std::size_t c = 0; c < kCategoryCount; ++c) json.member(name_of(Category(c)), way.peak.bytes.bytes[c]);
  json.end_object();
  json.member("live_bytes", way.live()).member("allocator_bytes", way.allocator);
  json.member("outside_bytes", way.outside).member("device_bytes", way.device()).member("spare_bytes", way.spare);
  json.member("moment", std::string(way.peak.moment)).member("fits", way.fits()).end_object();
}

void write(JsonWriter& json, const Question& q, const Answer& course, const GenerationAnswer& answer) {
  json.begin_object().member("line", first_line(q, answer, &course)).member("fits", answer.as_is.fits());
  json.key("as_is"), write(json, answer.as_is);
  const auto written = [&](const Generation& way) { write(json, way); };
  json.member("fewer", answer.fewer, written).member("largest", answer.largest, written);
  json.end_object();
}

void write(JsonWriter& json, const Question& q, const Answer& answer) {
  json.begin_object();
  json.member("model", q.spec.name).member("task", q.pipeline ? "image" : q.training ? "train" : "infer");
  json.member("parameters", q.of_images() ? parameters_of_images(q)
                            : q.pipeline  ? parameters_of(*q.pipeline)
                            : q.course    ? q.spec.parameters()
                                          : nn::parameter_count(*q.shape));
  json.member("vocabulary", q.shape->vocabulary);
  json.member("batch", q.batch).member("seq", q.seq).member("card", q.card->name).member("gpus", q.gpus);
  json.member("memory_named", q.memory_named);
  json.key("notes"), write(json, q.notes);
  json.key("room").begin_object();
  json.member("memory_bytes", q.room.memory).member("context_bytes", q.room.context);
  json.member("fragmentation_bytes", q.room.fragmentation).member("reserve_bytes", q.room.reserve);
  json.member("nccl_bytes", q.room.nccl);
  json.member("workspace_bytes", q.room.workspace).member("budget_bytes", q.room.budget());
  json.member("left_bytes", q.room.left()).member("host_bytes", q.room.host);
  json.member("host_gb_per_s", q.host_gb_per_s);
  json.end_object();
  json.member("fits", answer.fits()).member("combinations", answer.combinations).member("planned", answer.planned);
  json.key("pytorch");
  if (answer.reader)
    write(json, q, *answer.reader);
  else if (answer.generation)
    write(json, q, answer, *answer.generation);
  else
    json.null();
  json.member("images", answer.images, [&](const ImagesAnswer& images) { write(json, q, images); });
  json.member("pipeline", answer.pipeline, [&](const PipelineAnswer& pipeline) { write(json, q, pipeline); });
  json.member("serving", answer.serving, [&](const ServingAnswer& serving) { write(json, q, serving); });
  const auto written = [&](const Row& row) { write(json, row); };
  json.member("as_is", course_answers(q) ? &answer.as_is : nullptr, written);
  json.key("ladder").begin_array();
  for (const Row& row : answer.ladder) write(json, row);
  json.end_array();
  json.member("cheapest", answer.cheapest, written).member("closest", answer.closest, written);
  json.member("with_host_memory", answer.with_host_memory, written).member("longest", answer.longest, written);
  json.member("longest_seq", answer.longest_seq).key("adapters").begin_array();
  for (const Row& row : answer.adapters) write(json, row);
  json.end_array();
  json.member("other_words", answer.cheapest && q.training ? &answer.elsewhere : nullptr,
              [&](const plan::Elsewhere& words) {
                json.begin_object();
                for (const auto& [key, list] :
                     {std::pair("pytorch", &words.pytorch), std::pair("trainer", &words.trainer),
                      std::pair("deepspeed", &words.deepspeed), std::pair("no_counterpart", &words.unsupported)})
                  json.key(key), write(json, *list);
                json.end_object();
              });
  const auto torch_peak = [&](const auto& peak) {
    json.begin_object().member("peak_bytes", peak.bytes.total()).member("moment", std::string(peak.moment));
    json.member("checked", peak.checked).end_object();
  };
  json.member("pytorch_as_is", answer.torch_as_is, torch_peak);
  json.member("pytorch_cheapest", answer.torch_cheapest, torch_peak);
  json.member("most", answer.most, [&](const Most& most) {
    json.begin_object().member("batch_at_once", most.batch_at_once).member("micro_batch", most.micro_batch);
    json.member("unit", most.unit).member("seq", most.seq).end_object();
  });
  json.end_object();
}

}  // namespace

std::string json_of(const Question& question, const Answer& answer) { return json_of(std::vector{question}, {answer}); }

std::string json_of(const std::vector<Question>& questions, const std::vector<Answer>& answers) {
  JsonWriter json;
  if (questions.size() > 1) json.begin_array();
  for (std::size_t i = 0; i < questions.size(); ++i) write(json, questions[i], answers[i]);
  if (questions.size() > 1) json.end_array();
  return json.text();
}

}  // namespace oomlab::fit
