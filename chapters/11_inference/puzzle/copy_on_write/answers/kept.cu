// FAILS: host_bytes
// Never much in one call, and never given back.
struct Kept {
  std::vector<float> values;
  Kept* before;
};
Kept* history = nullptr;

int sequence_fork(int s) {
  const int copy = sequence_new();
  sequences[copy] = sequences[s];
  for (const int b : sequences[copy].blocks) ++users[b];
  return copy;
}
bool append(int s, const float* token) {  // token: width floats on the device
  Sequence& sequence = sequences[s];
  const int place = sequence.tokens % block_tokens;
  if (place == 0) {
    const int block = take_block();
    if (block < 0) return false;
    sequence.blocks.push_back(block);
  } else if (users[sequence.blocks.back()] > 1) {  // others read this block: write to a copy
    const int shared = sequence.blocks.back();
    const int own = take_block();
    if (own < 0) return false;
    CHECK(cudaMemcpy(address(own, 0), address(shared, 0), size_t(place) * width * sizeof(float), cudaMemcpyDeviceToDevice));
    --users[shared];
    sequence.blocks.back() = own;
  }
  CHECK(cudaMemcpy(address(sequence.blocks.back(), place), token, width * sizeof(float), cudaMemcpyDeviceToDevice));
  history = new Kept{std::vector<float>(width * 16), history};
  ++sequence.tokens;
  return true;
}
