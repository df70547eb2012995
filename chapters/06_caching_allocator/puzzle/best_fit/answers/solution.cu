void* arena_allocate(size_t bytes) {
  bytes = (bytes + step - 1) / step * step;
  auto best = pieces.end();
  for (auto p = pieces.begin(); p != pieces.end(); ++p)
    if (p->second.free && p->second.bytes >= bytes && (best == pieces.end() || p->second.bytes < best->second.bytes)) best = p;
  if (best == pieces.end()) return nullptr;
  if (best->second.bytes > bytes) pieces[best->first + bytes] = {best->second.bytes - bytes, true};  // the rest stays free
  best->second = {bytes, false};
  return arena + best->first;
}
void arena_free(void* address) {
  auto piece = pieces.find(size_t(static_cast<char*>(address) - arena));
  piece->second.free = true;
  const auto next = std::next(piece);
  if (next != pieces.end() && next->second.free) {
    piece->second.bytes += next->second.bytes;
    pieces.erase(next);
  }
  if (piece != pieces.begin() && std::prev(piece)->second.free) {
    std::prev(piece)->second.bytes += piece->second.bytes;
    pieces.erase(piece);
  }
}
