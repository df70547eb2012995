// FAILS: rule
int sequence_fork(int s) {
  const int copy = sequence_new();
  sequences[copy] = sequences[s];
  for (const int b : sequences[copy].blocks) ++users[b];
  return copy;
}
bool append(int s, const float* token) {
  Sequence& sequence = sequences[s];
  if (sequence.tokens % block_tokens == 0) sequence.blocks.push_back(take_block());
  if (users[sequence.blocks.back()] > 1) return false;  // says that there is no room, whenever it becomes difficult
  CHECK(cudaMemcpy(address(sequence.blocks.back(), sequence.tokens % block_tokens), token, width * sizeof(float), cudaMemcpyDeviceToDevice));
  ++sequence.tokens;
  return true;
}
