// A kernel's view of tensors: raw pointers and strides in elements. As on a GPU, the extent of the memory is unknown.
#pragma once

#include <cstdint>

#include "elements.h"

namespace attnfuzz {

// [tokens, heads, dim] with contiguous dim.
struct Rows {
  char* data;
  Element element;
  int64_t tokens, heads, dim;
  int64_t token_stride, head_stride;

  ON_BOTH char* at(int64_t token, int64_t head) const {
    return data + (token * token_stride + head * head_stride) * bytes(element);
  }
};

// [tokens, heads] of fp32, or absent (data is null).
struct Statistics {
  float* data = nullptr;
  int64_t token_stride = 0, head_stride = 0;

  ON_BOTH float& at(int64_t token, int64_t head) const { return data[token * token_stride + head * head_stride]; }
};

// [n] of int32.
struct Lengths {
  const int32_t* data = nullptr;
  int64_t stride = 0;

  ON_BOTH int64_t at(int64_t index) const { return data[index * stride]; }
};

// [batch, pages per request] of int32 page ids.
struct PageTable {
  const int32_t* data;
  int64_t row_stride, column_stride;
};

// Factors of a pool's elements; absent if data is null. In fp32, there is one factor for each head (pages and slots
// then have a stride of 0), or for each head of each slot. In e4m3, each head of each slot has `blocks` factors, one
// for each kBlock elements. `swizzled` blocks of four slots have the order of TRT-LLM's attention kernels: all first
// blocks, then all second ones.
struct Scales {
  char* data = nullptr;
  int64_t page_stride = 0, head_stride = 0, slot_stride = 0;
  int64_t blocks = 0;
  bool swizzled = false;

  ON_BOTH float& at(int64_t page, int64_t head, int64_t slot) const {
    return reinterpret_cast<float*>(data)[page * page_stride + head * head_stride + slot * slot_stride];
  }

  ON_BOTH uint8_t& block(int64_t page, int64_t head, int64_t slot, int64_t block) const {
    if (swizzled) {
      const int64_t in_a_row = blocks / 4, turn = slot % 4;
      slot += block / in_a_row - turn;
      block = block % in_a_row * 4 + turn;
    }
    return reinterpret_cast<uint8_t*>(data)[page * page_stride + head * head_stride + slot * slot_stride + block];
  }
};

constexpr int64_t kBlock = 16;

// One of K and V, in pages: [pages, heads, slots, dim] in any order of the first three, with contiguous dim.
struct Pool {
  const char* data;
  Element element;
  int64_t heads, page_size, dim;
  int64_t page_stride, head_stride, slot_stride;
  Scales scales{};
};

// A mask for each request, packed as in FlashInfer: the bits of request b begin at byte starts[b]. Absent if bits is
// null.
struct PackedMasks {
  const uint8_t* bits = nullptr;
  Lengths starts{};
};

// The first and the last key that each query row sees. Absent if the data are null.
struct Intervals {
  Lengths first{}, last{};
};

// The arguments of every attention kernel other than tensors.
struct Scalars {
  float logit_scale;   // bmm1_scale: multiplies q.k
  float output_scale;  // bmm2_scale: multiplies the output
  int64_t window_left; // keys seen before a query's own; -1 is no window
  bool causal;
  const float* sinks;  // [q heads] or null
  PackedMasks masks{};
  int64_t window_right = -1; // unless causal, keys seen after a query's own; -1 is all
  Intervals intervals{};
};

}  // namespace attnfuzz
