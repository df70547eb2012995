// A layer of a transformer: its forward and its backward pass.

#include "plan/step_simulation.h"

namespace oomlab::nn {

namespace {

bool saves_norms(const Keep& saved) { return saved.layer && saved.norms; }
bool saves_post_attention_residual(const Keep& saved) { return saved.layer && saved.post_attention_residual; }

}  // namespace

// -------------------------------------------------------------------------------------------------------- forward pass

void StepSimulation::layer_forward(const Keep& saved, bool output) {
  add(adapter_masks());
  if (pre_norm_) {
    add(buffers_.attention_norm_output);
    add(buffers_.attention_norm_statistics);
  }
  add(buffers_.qkv);
  add(buffers_.all_rows);
  adapters_forward(buffers_.qkv_adapters);
  drop(buffers_.all_rows);
  if (pre_norm_ && !saves_attention_norm(saved)) drop(buffers_.attention_norm_output);
  exchange(buffers_.qkv);
  attention_forward(saved);
  if (!saved.layer) drop(buffers_.qkv);
  exchange(buffers_.attention_output);
  begin_sum(buffers_.post_attention_residual);
  adapters_forward(buffers_.projection_adapters);
  end_sum(buffers_.post_attention_residual);
  if (!saves_attention_output(saved)) drop(buffers_.attention_output);
  if (pre_norm_)
    pre_norm_mlp_forward(saved, output);
  else
    post_norm_mlp_forward(saved, output);
  if (!saved.layer || shares_rows()) drop(adapter_masks());
}

// From QKV to the attention's output.
void StepSimulation::attention_forward(const Keep& saved) {
  switch (levers_.form.attention) {
    case AttentionForm::textbook:
      add(buffers_.probabilities);
      add(buffers_.attention_output);
      if (!saved.layer || !saved.probabilities) drop(buffers_.probabilities);
      break;
    case AttentionForm::tiled:
      add(buffers_.attention_output);
      add(buffers_.score_tile);
      drop(buffers_.score_tile);
      break;
    case AttentionForm::fused:
      add(buffers_.log_sum_exp);
      add(buffers_.key_value_block);
      add(buffers_.attention_output_sums);
      add(buffers_.key_value_block);  // the next one
      drop(buffers_.key_value_block);
      drop(buffers_.key_value_block);
      add(buffers_.attention_output);
      drop(buffers_.attention_output_sums);
      if (!saved.layer) drop(buffers_.log_sum_exp);
      break;
  }
}

// x + attention(x) is there; behind it norm, MLP and residual.
void StepSimulation::pre_norm_mlp_forward(const Keep& saved, bool output) {
  add(buffers_.mlp_norm_output);
  add(buffers_.mlp_norm_statistics);
  if (!tiles_mlp()) {
    add(buffers_.gate_and_up);
    add(buffers_.all_rows);
    adapters_forward(buffers_.up_adapters);
    drop(buffers_.all_rows);
    if (!saves_mlp_norm(saved)) drop(buffers_.mlp_norm_output);
  }
  if (output) {
    const bool in_its_place =
        activates_by_rows(saved) && !saves_post_attention_residual(saved) && levers_.slice.parts == 1;
    down_projection_forward(saved, in_its_place ? 0 : buffers_.residual);
    if (!saves_post_attention_residual(saved)) drop(buffers_.post_attention_residual);
    if (in_its_place) add(buffers_.residual);
  } else if (saves_activation(saved)) {
    add(buffers_.activation_output);
  }
  if (tiles_mlp() && !saves_mlp_norm(saved)) drop(buffers_.mlp_norm_output);
  if (!saved.layer) {
    drop(buffers_.attention_norm_statistics);
    drop(buffers_.mlp_norm_statistics);
  }
}

// x + attention(x) is there; behind it norm, MLP, residual and norm.
void StepSimulation::post_norm_mlp_forward(const Keep& saved, bool output) {
  add(buffers_.mlp_norm_output);
  add(buffers_.mlp_norm_statistics);
  if (!saves_post_attention_residual(saved)) drop(buffers_.post_attention_residual);
  if (!tiles_mlp()) {
    add(buffers_.gate_and_up);
    add(buffers_.all_rows);
    drop(buffers_.all_rows);
  }
  down_projection_forward(saved, buffers_.post_mlp_residual);
  if (!saves_norms(saved)) drop(buffers_.mlp_norm_output);
  if (output) add(buffers_.residual);
  add(buffers_.output_norm_statistics);
  if (!saved.layer) {
    drop(buffers_.mlp_norm_statistics);
    drop(buffers_.post_mlp_residual);
    drop(buffers_.output_norm_statistics);
  }
}

// From what the activation reads, by tiles from the norm, to `output`, the sum of the down projection and the residual.
void StepSimulation::down_projection_forward(const Keep& saved, std::uint64_t output) {
  if (tiles_mlp()) {  // the activation works in place
    begin_sum(output);
    add(buffers_.gate_and_up_tile);
    add(buffers_.all_rows);
    adapters_forward(buffers_.up_adapters, /*by_rows=*/true);
    adapters_forward(buffers_.down_adapters, /*by_rows=*/true);
    drop(buffers_.all_rows);
    drop(buffers_.gate_and_up_tile);
    end_sum(output);
  } else if (activates_by_rows(saved)) {
    begin_sum(output);
    add(buffers_.activation_chunk);
    adapters_forward(buffers_.down_adapters, /*by_rows=*/true);
    drop(buffers_.activation_chunk);
    end_sum(output);
  } else if (saved.layer) {
    add(buffers_.activation_output);
    begin_sum(output);
    adapters_forward(buffers_.down_adapters);
    end_sum(output);
    if (!saves_activation(saved)) drop(buffers_.activation_output);
  } else {  // the activation works in place
    begin_sum(output);
    adapters_forward(buffers_.down_adapters);
    end_sum(output);
    drop(buffers_.gate_and_up);
  }
}

// ------------------------------------------------------------------------------------------------------- backward pass

void StepSimulation::layer_backward(const Keep& saved) {
  if (shares_rows()) add(adapter_masks());  // once more
  if (pre_norm_)
    pre_norm_layer_backward(saved);
  else
    post_norm_layer_backward(saved);
}

void StepSimulation::pre_norm_layer_backward(const Keep& saved) {
  mlp_backward(saved);
  drop(buffers_.post_attention_residual);
  attention_backward(saved);
  input_of_gradients(buffers_.qkv_adapters, saves_attention_norm(saved), buffers_.attention_norm_output,
                     buffers_.all_rows);
  begin_sum(buffers_.attention_norm_gradient);
  adapters_input_gradient(buffers_.qkv_adapters);
  drop(buffers_.qkv_gradient);
  end_sum(buffers_.attention_norm_gradient);
  drop(buffers_.attention_norm_statistics);
  drop(buffers_.attention_norm_gradient);
  drop(adapter_masks());
}

// Up to the gradient of x + attention(x).
void StepSimulation::mlp_backward(const Keep& saved) {
  if (!tiles_mlp()) down_projection_backward(saved);
  if (!saved.post_attention_residual) {
    begin_sum(buffers_.post_attention_residual);
    adapters_forward(buffers_.projection_adapters);
    end_sum(buffers_.post_attention_residual);
  }
  if (tiles_mlp()) {  // the gradient of the norm's output takes its place, or that of all rows, which are gathered
    const bool by_tiles = !saves_mlp_norm(saved) && levers_.slice.parts == 1;
    const std::uint64_t norm = by_tiles ? buffers_.mlp_norm_chunk : buffers_.mlp_norm_output;
    if (!saves_mlp_norm(saved)) add(norm);
    if (shares_rows()) {
      add(buffers_.all_rows);
      drop(norm);
    }
    mlp_tiles_backward();
    end_sum(norm);
    drop(buffers_.mlp_norm_statistics);
    drop(norm);
  } else if (!saves_mlp_norm(saved) && levers_.form.by_rows && levers_.slice.parts == 1) {
    add(buffers_.mlp_norm_chunk);
    adapters_weight_gradients(buffers_.up_adapters, /*by_rows=*/true);
    adapters_input_gradient(buffers_.up_adapters, /*by_rows=*/true);
    drop(buffers_.gate_and_up);  // by now its gradient
    drop(buffers_.mlp_norm_statistics);
    drop(buffers_.mlp_norm_chunk);
  } else {
    input_of_gradients(buffers_.up_adapters, saves_mlp_norm(saved), buffers_.mlp_norm_output, buffers_.all_rows);
    begin_sum(buffers_.mlp_norm_gradient);
    adapters_input_gradient(buffers_.up_adapters);
    drop(buffers_.gate_and_up);  // by now its gradient
    end_sum(buffers_.mlp_norm_gradient);
    drop(buffers_.mlp_norm_statistics);
    drop(buffers_.mlp_norm_gradient);
  }
}

// From the norm's output and the gradient of the MLP's output to that of the norm's, by tiles.
void StepSimulation::mlp_tiles_backward() {
  add(buffers_.all_rows);
  add(buffers_.gate_and_up_tile);
  add(buffers_.activation_chunk);
  adapters_forward(buffers_.up_adapters, /*by_rows=*/true);
  adapters_weight_gradients(buffers_.down_adapters, /*by_rows=*/true);
  adapters_input_gradient(buffers_.down_adapters, /*by_rows=*/true);
  adapters_weight_gradients(buffers_.up_adapters, /*by_rows=*/true);
  adapters_input_gradient(buffers_.up_adapters, /*by_rows=*/true);
  drop(buffers_.activation_chunk);
  drop(buffers_.gate_and_up_tile);
  drop(buffers_.all_rows);
}

// The gradients of a matrix, or of its adapters, read its input: what was not saved is computed again.
void StepSimulation::input_of_gradients(const StepBuffers::OfAdapters& adapters, bool saved, std::uint64_t input,
                                        std::uint64_t gathered) {
  if (!reads_input(adapters)) return;
  if (!saved) add(input);
  add(gathered);
  adapters_weight_gradients(adapters);
  drop(gathered);
  drop(input);
}

// Gradients of both branches are added to the residual's, where that is.
void StepSimulation::post_norm_layer_backward(const Keep& saved) {
  drop(buffers_.output_norm_statistics);
  drop(buffers_.post_mlp_residual);
  if (!tiles_mlp()) down_projection_backward(saved);
  if (!saved.post_attention_residual) {
    begin_sum(buffers_.post_attention_residual);
    end_sum(buffers_.post_attention_residual);
  }
  if (!saved.norms) add(buffers_.mlp_norm_output);
  add(buffers_.all_rows);
  if (tiles_mlp()) {  // all rows become their gradient
    if (shares_rows()) drop(buffers_.mlp_norm_output);
    mlp_tiles_backward();
    if (shares_rows()) {
      add(buffers_.residual_gradient);
      drop(buffers_.residual_gradient);
    } else {
      drop(buffers_.mlp_norm_output);
    }
    drop(buffers_.all_rows);
  } else {
    drop(buffers_.all_rows);
    drop(buffers_.mlp_norm_output);
    add_to_residual_gradient();
    drop(buffers_.gate_and_up);  // by now its gradient
  }
  drop(buffers_.mlp_norm_statistics);
  drop(buffers_.post_attention_residual);
  attention_backward(saved);
  add(buffers_.all_rows);  // the layer's input
  drop(buffers_.all_rows);
  add_to_residual_gradient();
  drop(buffers_.qkv_gradient);
}

// Behind a norm the gradient through a branch is added to the residual's: where each part has its rows of that, when it
// is summed up.
void StepSimulation::add_to_residual_gradient() {
  if (!shares_rows()) return;
  begin_sum(buffers_.residual_gradient);
  end_sum(buffers_.residual_gradient);
  drop(buffers_.residual_gradient);
}

// From the gradient of the MLP's output to that of what the activation reads, whose place it takes.
void StepSimulation::down_projection_backward(const Keep& saved) {
  add(buffers_.all_rows);
  if (!saves_activation(saved) && levers_.form.by_rows) {
    add(buffers_.activation_chunk);
    adapters_weight_gradients(buffers_.down_adapters, /*by_rows=*/true);
    adapters_input_gradient(buffers_.down_adapters, /*by_rows=*/true);
    drop(buffers_.activation_chunk);
    drop(buffers_.all_rows);
    return;
  }
  input_of_gradients(buffers_.down_adapters, saves_activation(saved), buffers_.activation_output);
  add(buffers_.activation_gradient);
  adapters_input_gradient(buffers_.down_adapters);
  drop(buffers_.all_rows);
  // In gpt and bert it is the other way round, with as many bytes: this one becomes the gradient, the other one goes.
  drop(buffers_.activation_gradient);
}

// From the attention's output and QKV to the gradient of QKV.
void StepSimulation::attention_backward(const Keep& saved) {
  const bool output_saved = saves_attention_output(saved);
  add(buffers_.all_rows);
  adapters_weight_gradients(buffers_.projection_adapters);
  switch (levers_.form.attention) {
    case AttentionForm::textbook:
      if (output_saved) drop(buffers_.attention_output);
      add(buffers_.attention_output_gradient);
      adapters_input_gradient(buffers_.projection_adapters);
      drop(buffers_.all_rows);
      exchange(buffers_.attention_output_gradient);
      if (!saved.probabilities) add(buffers_.probabilities);
      add(buffers_.qkv_gradient);
      add(buffers_.probabilities_gradient);
      drop(buffers_.attention_output_gradient);
      drop(buffers_.probabilities);
      drop(buffers_.probabilities_gradient);
      break;
    case AttentionForm::tiled:
      if (output_saved) drop(buffers_.attention_output);
      add(buffers_.attention_output_gradient);
      adapters_input_gradient(buffers_.projection_adapters);
      drop(buffers_.all_rows);
      exchange(buffers_.attention_output_gradient);
      add(buffers_.qkv_gradient);
      add(buffers_.score_tile);
      add(buffers_.score_tile_gradient);
      add(buffers_.key_value_gradient_sums);
      drop(buffers_.attention_output_gradient);
      drop(buffers_.score_tile);
      drop(buffers_.score_tile_gradient);
      drop(buffers_.key_value_gradient_sums);
      break;
    case AttentionForm::fused:
      add(buffers_.attention_output_gradient);
      adapters_input_gradient(buffers_.projection_adapters);
      drop(buffers_.all_rows);
      exchange(buffers_.attention_output_gradient);
      exchange(buffers_.attention_output);
      add(buffers_.attention_output_dots);
      drop(buffers_.attention_output);
      if (levers_.ring()) return ring_attention_backward();
      add(buffers_.qkv_gradient);
      drop(buffers_.attention_output_gradient);
      drop(buffers_.attention_output_dots);
      drop(buffers_.log_sum_exp);
      break;
  }
  drop(buffers_.qkv);
  exchange(buffers_.qkv_gradient);
}

// Keys and values go round, and their gradients with them.
void StepSimulation::ring_attention_backward() {
  add(buffers_.key_value_block);
  add(buffers_.attention_output_sums);  // the gradient of Q
  add(buffers_.key_value_block_gradient);
  add(buffers_.key_value_block_gradient);  // the next ones
  add(buffers_.key_value_block);
  drop(buffers_.key_value_block_gradient);
  drop(buffers_.key_value_block);
  drop(buffers_.key_value_block);
  drop(buffers_.attention_output_gradient);
  drop(buffers_.attention_output_dots);
  drop(buffers_.log_sum_exp);
  drop(buffers_.qkv);
  add(buffers_.qkv_gradient);
  drop(buffers_.attention_output_sums);
  drop(buffers_.key_value_block_gradient);
}

// The activation's output is not saved, and comes some rows at a time.
bool StepSimulation::activates_by_rows(const Keep& saved) const {
  return tiles_mlp() || (levers_.form.by_rows && saved.layer && !saves_activation(saved));
}

bool StepSimulation::saves_activation(const Keep& saved) const {
  return saved.layer && saved.gelu && reads_input(buffers_.down_adapters) && !tiles_mlp();
}

}  // namespace oomlab::nn
