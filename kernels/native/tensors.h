// Checks and unpacks Python's tensors. The checks cover a tensor's dtype, axes, contiguity and device, and whether q,
// K, V and outputs fit each other. The rows of metadata are not compared with the batch: like FlashInfer's kernels,
// these trust their caller there.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include "views.h"

namespace attnfuzz {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

#define REQUIRE(condition, message) \
  if (!(condition)) TVM_FFI_THROW(ValueError) << message

// Throws unless a tensor is on the device of this library. Each library has its own version.
void require_here(const TensorView& tensor, const char* name);

void require_axes(const TensorView& tensor, const char* name, int axes);
void require_last_axis_contiguous(const TensorView& tensor, const char* name);

char* data_of(const TensorView& tensor);
bool is(const TensorView& tensor, int code, int bits);
Element element_of(const TensorView& tensor, const char* name);
bool is_float(Element element);

Rows rows_of(const TensorView& tensor, const char* name);
Rows float_rows_of(const TensorView& tensor, const char* name);

// [batch, q_len, heads, dim] viewed as [batch * q_len, heads, dim].
Rows batched_rows_of(const TensorView& tensor, const char* name);

Statistics statistics_of(const TensorView& tensor, const char* name, const Rows& rows);
Statistics statistics_of(const Optional<TensorView>& tensor, const char* name, const Rows& rows);
Lengths lengths_of(const TensorView& tensor, const char* name);
// Bytes of bits, and the first byte of each request.
PackedMasks masks_of(const Optional<TensorView>& bits, const Optional<TensorView>& starts);
// An interval for each of `rows` rows.
Intervals intervals_of(const Optional<TensorView>& first, const Optional<TensorView>& last, int64_t rows);
PageTable table_of(const TensorView& tensor);

// One of K and V: [pages, heads, slots, dim] (HND) or [pages, slots, heads, dim] (NHD), or member `member` of
// [pages, 1 or 2, ...].
Pool pool_of(const TensorView& tensor, const char* name, bool paired, int member, bool nhd);

// The scales of a pool: [heads], or [pages, heads, slots] (HND) or [pages, slots, heads] (NHD). A pool of e2m1 needs
// scales with an additional axis of blocks.
Scales scales_of(const TensorView& tensor, const char* name, const Pool& pool, bool nhd, bool swizzled = false);
Scales scales_of(const Optional<TensorView>& tensor, const char* name, const Pool& pool, bool nhd,
                 bool swizzled = false);

// `heads`, `dim` and `value_dim` are those of K and V.
void require_fit(const Rows& query, const Rows& out, int64_t heads, int64_t dim, int64_t value_dim);
void require_same_elements(Element query, Element key, Element value);

Scalars scalars_of(double bmm1_scale, double bmm2_scale, int64_t window_left, bool causal,
                   const Optional<TensorView>& sinks, int64_t heads);
char* workspace_of(const TensorView& tensor);

}  // namespace attnfuzz
