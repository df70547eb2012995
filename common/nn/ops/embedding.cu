// Embeddings.

#include "nn/ops/embedding.h"

#include "nn/ops/instances.h"
#include "nn/ops/kernel.h"

namespace oomlab::nn {

namespace {

template <class T>
__global__ void embedding_kernel(const int* __restrict__ tokens, const T* __restrict__ token,
                                 const T* __restrict__ position, const T* __restrict__ everywhere, T* __restrict__ x,
                                 std::size_t rows, TokenShare share, std::size_t width, std::size_t first_row,
                                 const int* __restrict__ of_row, bool packs) {
  for (std::size_t row : row_range(rows)) {
    const T* const word = token + static_cast<std::size_t>(tokens[row]) * width;
    const std::size_t number = first_row + row;
    const std::size_t place = of_row ? static_cast<std::size_t>(of_row[number]) : share.position(number % share.seq);
    T* to = x + row * width;
    for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      v = load<V>(word, i);
      V p{}, e{};
      if (position) p = load<V>(position + place * width, i);
      if (everywhere) e = load<V>(everywhere, i);
      each_lane<V>([&](std::size_t k) {
        v[k] = static_cast<T>(static_cast<float>(v[k]) + static_cast<float>(p[k]) + static_cast<float>(e[k]));
      });
      store(to, i, v);
    });
  }
}

// Every token belongs to one owner, which adds its rows in order: no atomics, and the same bits every time. An owner
// looks at kListed rows at a time: its threads write down which are its own, and link each to the next one with the
// same token. A token's rows are then added in FP32, and rounded once.
constexpr std::size_t kOwners = 256, kListed = 4096;
struct TokenRows {
  int token[kListed];             // −1: not this owner's
  std::uint16_t next[kListed];    // the next row with this token; kListed: none
  std::uint8_t follows[kListed];  // whether there is one before
};

template <class T>
__global__ void token_gradient_kernel(const int* __restrict__ tokens, const T* __restrict__ dx, T* __restrict__ dtoken,
                                      std::size_t rows, std::size_t width, bool packs) {
  auto* const list = dynamic_shared<TokenRows>();
  for (std::size_t owner : row_range(kOwners))
    for (std::size_t top = 0; top < rows; top += kListed) {
      const std::size_t count = rows - top < kListed ? rows - top : kListed;
      for (std::size_t i : block_range(count)) {
        const int token = tokens[top + i];
        list->token[i] = static_cast<std::size_t>(token) % kOwners == owner ? token : -1;
        list->follows[i] = 0;
      }
      __syncthreads();
      for (std::size_t i : block_range(count)) {
        if (list->token[i] < 0) continue;
        std::size_t next = i + 1;
        while (next < count && list->token[next] != list->token[i]) ++next;
        list->next[i] = static_cast<std::uint16_t>(next < count ? next : kListed);
        if (next < count) list->follows[next] = 1;
      }
      __syncthreads();
      for (std::size_t first = 0; first < count; ++first) {
        if (list->token[first] < 0 || list->follows[first]) continue;
        T* to = dtoken + static_cast<std::size_t>(list->token[first]) * width;
        for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
          using V = decltype(v);
          float sum[V::size];
          v = load<V>(to, i);
          each_lane<V>([&](std::size_t k) { sum[k] = static_cast<float>(v[k]); });
          for (std::size_t row = first; row != kListed; row = list->next[row]) {
            v = load<V>(dx + (top + row) * width, i);
            each_lane<V>([&](std::size_t k) { sum[k] += static_cast<float>(v[k]); });
          }
          each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
          store(to, i, v);
        });
      }
      __syncthreads();  // the next rows are listed in the same place
    }
}

// Of positions that follow each other: `count` values of each sequence, `stride` apart.
template <class T>
__global__ void position_gradient_kernel(const T* __restrict__ dx, T* __restrict__ dposition, std::size_t sequences,
                                         std::size_t stride, std::size_t count, bool accumulate, bool packs) {
  for_packs<T>(GridRange{}, count, packs, [&](auto v, std::size_t i) {
    using V = decltype(v);
    if (accumulate) v = load<V>(dposition, i);
    float sum[V::size];
    each_lane<V>([&](std::size_t k) { sum[k] = static_cast<float>(v[k]); });
    for (std::size_t s = 0; s < sequences; ++s) {
      const V d = load<V>(dx + s * stride, i);
      each_lane<V>([&](std::size_t k) { sum[k] += static_cast<float>(d[k]); });
    }
    each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
    store(dposition, i, v);
  });
}

// The same of sequences side by side: a row is a position, which the shorter ones do not have.
template <class T>
__global__ void packed_position_gradient_kernel(const T* __restrict__ dx, T* __restrict__ dposition,
                                                const int* __restrict__ offsets, std::size_t sequences, std::size_t seq,
                                                std::size_t width, bool accumulate, bool packs) {
  for (std::size_t place : row_range(seq))
    for_packs<T>(BlockRange{}, width, packs, [&](auto v, std::size_t i) {
      using V = decltype(v);
      T* const to = dposition + place * width;
      if (accumulate) v = load<V>(to, i);
      float sum[V::size];
      each_lane<V>([&](std::size_t k) { sum[k] = static_cast<float>(v[k]); });
      for (std::size_t s = 0; s < sequences; ++s) {
        const std::size_t row = static_cast<std::size_t>(offsets[s]) + place;
        if (row >= static_cast<std::size_t>(offsets[s + 1])) continue;
        const V d = load<V>(dx + row * width, i);
        each_lane<V>([&](std::size_t k) { sum[k] += static_cast<float>(d[k]); });
      }
      each_lane<V>([&](std::size_t k) { v[k] = static_cast<T>(sum[k]); });
      store(to, i, v);
    });
}

}  // namespace

template <class T>
void embedding_forward(Context& context, const int* tokens, const T* token, const std::type_identity_t<T>* position,
                       const std::type_identity_t<T>* everywhere, T* x, std::size_t rows, const TokenShare& share,
                       std::size_t width, std::size_t first_row, const int* of_row) {
  launch(embedding_kernel<T>, shape_for_packed_rows<T>(rows, width), context.stream(), tokens, token, position,
         everywhere, x, rows, share, width, first_row, of_row, packs_fit<T>(width, token, position, everywhere, x));
}

template <class T>
void embedding_backward(Context& context, const int* tokens, const T* dx, T* dtoken, std::type_identity_t<T>* dposition,
                        std::size_t rows, const TokenShare& share, std::size_t width, bool accumulate_position,
                        const SequenceOffsets* packed) {
  launch(token_gradient_kernel<T>, shape_for_rows(kOwners, sizeof(TokenRows)), context.stream(), tokens, dx, dtoken,
         rows, width, packs_fit<T>(width, dx, dtoken));
  if (!dposition) return;
  if (packed)
    return launch(packed_position_gradient_kernel<T>, shape_for_packed_rows<T>(share.seq, width), context.stream(), dx,
                  dposition, packed->on_device, packed->sequences(), share.seq, width, accumulate_position,
                  packs_fit<T>(width, dx, dposition));
  const std::size_t stride = share.seq * width;
  const auto add_up = [&](std::size_t first, std::size_t tokens_of_each) {
    const T* const from = dx + first * width;
    T* const to = dposition + share.position(first) * width;
    const std::size_t count = tokens_of_each * width;
    if (count == 0) return;
    launch(position_gradient_kernel<T>, shape_for_items(count / Pack<T>::size), context.stream(), from, to,
           rows / share.seq, stride, count, accumulate_position, packs_fit<T>(stride | count, from, to));
  };
  if (share.gap == 0) return add_up(0, share.seq);
  add_up(0, share.half());
  add_up(share.half(), share.seq - share.half());
}

#define OOMLAB_EMBEDDING(T)                                                                                   \
  template void embedding_forward<T>(Context&, const int*, const T*, const T*, const T*, T*, std::size_t,     \
                                     const TokenShare&, std::size_t, std::size_t, const int*);                \
  template void embedding_backward<T>(Context&, const int*, const T*, T*, T*, std::size_t, const TokenShare&, \
                                      std::size_t, bool, const SequenceOffsets*);
OOMLAB_FOR_EACH_TYPE(OOMLAB_EMBEDDING)

}  // namespace oomlab::nn
