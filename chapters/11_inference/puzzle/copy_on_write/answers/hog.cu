// FAILS: over_budget
int sequence_fork(int s) {
  float* more = nullptr;  // a larger pool, for the copies
  CHECK(cudaMalloc(&more, 2 * users.size() * block_tokens * width * sizeof(float)));
  return s;
}
bool append(int s, const float* token) {
  Sequence& sequence = sequences[s];
  if (sequence.tokens % block_tokens == 0) sequence.blocks.push_back(take_block());
  CHECK(cudaMemcpy(address(sequence.blocks.back(), sequence.tokens % block_tokens), token, width * sizeof(float), cudaMemcpyDeviceToDevice));
  ++sequence.tokens;
  return true;
}
