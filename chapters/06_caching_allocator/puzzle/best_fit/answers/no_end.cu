// FAILS: out_of_bounds
void* arena_allocate(size_t bytes) {
  bytes = (bytes + step - 1) / step * step;
  auto best = pieces.end();
  for (auto p = pieces.begin(); p != pieces.end(); ++p)
    if (p->second.free && p->second.bytes >= bytes && (best == pieces.end() || p->second.bytes < best->second.bytes)) best = p;
  if (best == pieces.end()) return nullptr;
  const size_t rest = best->second.bytes - bytes;
  if (rest) pieces[best->first + bytes] = {rest, true};
  best->second = {bytes, false};
  return arena + best->first;
}
void arena_free(void* address) {
  const auto piece = pieces.find(size_t(static_cast<char*>(address) - arena));
  piece->second.free = true;
  auto next = std::next(piece);
  if (next->second.free) {
    piece->second.bytes += next->second.bytes;
    pieces.erase(next);
  }
  if (piece != pieces.begin()) {
    auto before = std::prev(piece);
    if (before->second.free) {
      before->second.bytes += piece->second.bytes;
      pieces.erase(piece);
    }
  }
}
