// Head and loss of a transformer.

#include "plan/step_simulation.h"

namespace oomlab::nn {

void StepSimulation::head_forward() {
  if (spec_.tied) gather_parameters(token_unit_);
  gather_parameters(head_unit_);
  if (shares_rows()) {
    add(buffers_.all_rows);
    drop(buffers_.residual);
  }
  head_norm();
  if (chunked_loss()) {
    add_head_gradients();
    add(buffers_.logits_chunk);
    loss();
    drop(buffers_.logits_chunk);
  } else {
    add(buffers_.logits);
    if (!trains_head()) drop(buffers_.head_norm_output);
    if (levers_.trained == Trained::head) drop(buffers_.residual);
    if (levers_.data_parallel != DataParallel::other_device) loss();
  }
}

// From the last layer's output to what the logits are made of.
void StepSimulation::head_norm() {
  if (spec_.bert()) {
    add(buffers_.head_dense_output);
    add(buffers_.head_gelu_output);
  }
  add(buffers_.head_norm_output);
  add(buffers_.head_norm_statistics);
}

// torch.nn.DataParallel's first device has the logits of all devices.
void StepSimulation::loss() {
  const bool gathers = levers_.data_parallel == DataParallel::first_device;
  if (gathers) add(buffers_.gathered_logits);
  tracker_.add(Category::workspace, buffers_.row_losses);
  tracker_.drop(Category::workspace, buffers_.row_losses);
  if (gathers) {
    drop(buffers_.gathered_logits);
    tracker_.drop(Category::data, buffers_.whole_batch_tokens_and_labels);
  }
}

// From the gradient of the logits to that of the last layer's output.
void StepSimulation::head_backward() {
  if (levers_.data_parallel == DataParallel::other_device)
    tracker_.add(Category::gradients, whole_state()[Category::gradients]);
  if (chunked_loss()) {  // while chunks of logits came and went
    drop(buffers_.head_norm_output);
    add(buffers_.head_norm_gradient);  // in its place
  } else {
    add_head_gradients();
    if (trains_head()) drop(buffers_.head_norm_output);
    add(buffers_.head_norm_gradient);
    drop(buffers_.logits);  // by now their gradient
  }
  const std::uint64_t last_output = shares_rows() ? buffers_.all_rows : buffers_.residual;
  if (spec_.bert()) {
    drop(buffers_.head_gelu_output);
    drop(buffers_.head_dense_output);
    drop(last_output);
    add(last_output);  // its gradient
    drop(buffers_.head_norm_gradient);
  } else {
    drop(last_output);
    drop(buffers_.head_norm_gradient);
    add(last_output);  // its gradient, in the place of the norm's
  }
  drop(buffers_.head_norm_statistics);
  end_sum(buffers_.residual_gradient);  // every part has computed all rows, and goes on with its own
  if (spec_.tied) release_parameters(token_unit_);
  release_parameters(head_unit_);
  reduce_gradients(head_unit_);
  if (levers_.shares_token(spec_) && !keeps_token_gradients()) reduce_gradients(token_unit_);
}

// A tied head's matrix is the token table.
void StepSimulation::add_head_gradients() {
  if (levers_.trained == Trained::adapters) return;
  if (levers_.shares_token(spec_))
    add_shared_token_gradients();
  else if (spec_.tied)
    add_gradients(token_unit_);
  add_gradients(head_unit_);
}

}  // namespace oomlab::nn
