#include "cache_copies.h"

#include <cstring>
#include <utility>
#include <vector>

#include "defects.h"

namespace attnfuzz {
namespace {

char* address(const Pool& pool, int64_t page, int64_t head, int64_t slot) {
  int64_t offset = page * pool.page_stride + head * pool.head_stride + slot * pool.slot_stride;
  if (planted(Defect::copied_offset_in_int32)) offset = static_cast<int32_t>(offset);
  return const_cast<char*>(pool.data) + offset * bytes(pool.element);
}

}  // namespace

void gather(const Pool& pool, const Rows& out, const Gather& where, float scale) {
  const LoadRow load = load_row(pool.element);
  const StoreRow store = store_row(out.element);
  std::vector<float> values(pool.dim);
  for (int64_t row = 0; row < where.batch; ++row) {
    const int64_t begin = where.first.at(row), start = planted(Defect::gather_start_ignored) ? 0 : where.starts.at(row);
    int64_t count = where.first.at(row + 1) - begin;
    if (planted(Defect::gather_stops_at_a_page_edge)) count -= (start + count) % pool.page_size;
    if (planted(Defect::gather_length_of_the_row_before) && row) count = smaller(count, begin - where.first.at(row - 1));
    for (int64_t token = 0; token < count; ++token) {
      int64_t position = start + token;
      if (planted(Defect::gather_start_rounded_to_a_page)) position = start - start % pool.page_size + token;
      const int64_t column = position / pool.page_size;
      const int64_t entry = row * where.pages.row_stride + column * where.pages.column_stride;
      const int64_t page = where.pages.data[entry];
      for (int64_t head = 0; head < pool.heads; ++head) {
        const char* from = address(pool, page, head, position % pool.page_size);
        char* to = out.at(begin + token, head);
        if (pool.element == out.element) {
          std::memcpy(to, from, pool.dim * bytes(pool.element));
          continue;
        }
        load(from, pool.dim, values.data());
        for (float& value : values) {
          value = planted(Defect::gather_scale_divided) ? value / scale : value * scale;
        }
        store(values.data(), pool.dim, to);
      }
    }
  }
}

void copy_pages(const Pool& pool, const Indices& source, const Indices& target, int64_t count) {
  int64_t heads = pool.heads;
  if (planted(Defect::odd_head_not_copied) && heads > 1) heads -= heads % 2;
  int64_t slots = pool.page_size;
  if (planted(Defect::pages_of_16_copied) && slots > 16) slots = 16;
  for (int64_t index = 0; index < count; ++index) {
    int64_t from = source.at(index), to = target.at(index);
    if (planted(Defect::copy_backwards)) std::swap(from, to);
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t slot = 0; slot < slots; ++slot) {
        std::memcpy(address(pool, to, head, slot), address(pool, from, head, slot), pool.dim * bytes(pool.element));
      }
    }
  }
}

void move_tokens(const Pool& pool, const Indices& source, const Indices& target, int64_t count) {
  if (planted(Defect::moves_in_fours)) count -= count % 4;
  const int64_t row = pool.dim * bytes(pool.element), token = pool.heads * row, size = pool.page_size;
  std::vector<char> held(count * token);
  const auto copy = [&](int64_t index, int64_t slot, bool back) {
    for (int64_t head = 0; head < pool.heads; ++head) {
      char* kept = held.data() + index * token + head * row;
      char* place = address(pool, slot / size, head, slot % size);
      std::memcpy(back ? place : kept, back ? kept : place, row);
    }
  };
  // In this order, a token is read after others were written.
  const bool in_turn = planted(Defect::moved_one_after_another);
  for (int64_t index = 0; index < count; ++index) {
    copy(index, source.at(index), false);
    if (in_turn) copy(index, target.at(index), true);
  }
  for (int64_t index = 0; index < count && !in_turn; ++index) copy(index, target.at(index), true);
}

}  // namespace attnfuzz
