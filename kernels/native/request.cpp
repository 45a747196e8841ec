#include "request.h"

#include <algorithm>
#include <vector>

#include "softmax_rows.h"

namespace attnfuzz {
namespace {

// Number of queries whose softmax state is held at a time.
constexpr int64_t kQueries = 16;

thread_local std::vector<float> partials;

}  // namespace

void attend_request(const Rows& query, int64_t first_row, const Mask& mask, int64_t kv_head, int64_t group,
                    const Keys& keys, const Scalars& scalars, const Rows& out, const Statistics& lse) {
  const int64_t floats = Partial::floats(keys.value_dim);
  const Interval heads = heads_of(kv_head, group, query.heads);
  for (int64_t begin = 0; begin < mask.q_len; begin += kQueries) {
    const Interval queries{begin, std::min(begin + kQueries, mask.q_len)};
    const Block block{query, first_row, queries, kv_head, heads, mask, keys, scalars.logit_scale};
    partials.resize(std::max<size_t>(partials.size(), block.rows() * floats));
    attend(block, mask.seen_by(queries.begin, queries.end), partials.data());
    for (int64_t row = 0; row < block.rows(); ++row) {
      finish({partials.data() + row * floats}, block, row, scalars, out, lse);
    }
  }
}

}  // namespace attnfuzz
