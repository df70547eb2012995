// FAILS: rule
int sequence_fork(int s) {
  const int copy = sequence_new();
  sequences[copy] = sequences[s];
  for (const int b : sequences[copy].blocks) ++users[b];
  return copy;
}
bool append(int s, const float* token) {
  Sequence& sequence = sequences[s];
  if (sequence.tokens % block_tokens == 0) {
    const int block = take_block();
    if (block < 0) return false;
    sequence.blocks.push_back(block);
  }  // and where the last block is shared, all of its sequences get this token
  CHECK(cudaMemcpy(address(sequence.blocks.back(), sequence.tokens % block_tokens), token, width * sizeof(float), cudaMemcpyDeviceToDevice));
  ++sequence.tokens;
  return true;
}
