// Transforms of lists of positions.
#include "sparse.h"

namespace attnfuzz {

namespace {

// The entries of a row that a kernel with blocks of 128 entries transforms.
int64_t in_blocks(int64_t length) {
  return planted(Defect::lists_in_whole_blocks) && length > 128 ? length / 128 * 128 : length;
}

}  // namespace

void to_slots(const Lists& positions, Lengths requests, const PageTable& table, int64_t page_size,
              const Lists& slots) {
  for (int64_t r = 0; r < positions.rows; ++r) {
    const int64_t request = planted(Defect::lists_row_for_request) ? r : requests.at(r);
    const int32_t* of_request = table.data + request * table.row_stride;
    const int32_t* from = positions.row(r);
    int32_t* to = slots.row(r);
    for (int64_t i = 0; i < in_blocks(positions.length); ++i) {
      const int64_t position = from[i];
      if (position < 0 && !planted(Defect::lists_minus_one_transformed)) {
        to[i] = planted(Defect::lists_minus_one_to_0) ? 0 : -1;
        continue;
      }
      int64_t page = position / page_size;
      int64_t slot = planted(Defect::lists_power_of_two_pages) ? position & (page_size - 1) : position % page_size;
      if (planted(Defect::lists_page_of_64)) {
        page = position / 64;
        slot = position % 64;
      }
      if (planted(Defect::lists_slot_left_out)) slot = 0;
      to[i] = static_cast<int32_t>(of_request[page * table.column_stride] * page_size + slot);
    }
  }
}

void to_offsets(const Lists& positions, Lengths offsets, const Lists& out) {
  for (int64_t r = 0; r < positions.rows; ++r) {
    const int64_t offset = offsets.at(planted(Defect::lists_offset_of_the_first_row) ? 0 : r);
    for (int64_t i = 0; i < in_blocks(positions.length); ++i) {
      const int32_t position = positions.row(r)[i];
      const bool kept = position < 0 && !planted(Defect::lists_offset_of_minus_one);
      out.row(r)[i] = kept ? -1 : static_cast<int32_t>(position + offset);
    }
  }
}

}  // namespace attnfuzz
