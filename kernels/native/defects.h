// Mistakes that can be planted in the kernels, to measure the judge. Only a library compiled with ATTNFUZZ_DEFECTS has
// them: in the shipped one planted() is false at compile time, and they are optimised away.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "portable.h"

namespace attnfuzz {

// Named as in kernels/defects, which has the title and the source of each.
#define ATTNFUZZ_FOR_EACH_DEFECT(DO)      \
  DO(causal_limit_one_late)               \
  DO(causal_mask_from_the_first_key)      \
  DO(denominator_plus_epsilon)            \
  DO(dot_tail_left_out)                   \
  DO(dot_tail_twice)                      \
  DO(e4m3_subnormals_as_normal)           \
  DO(empty_parts_merged)                  \
  DO(empty_rows_divided_by_zero)          \
  DO(empty_split_not_written)             \
  DO(fixup_half_a_grid)                   \
  DO(fixup_leaves_lse)                    \
  DO(fixup_leaves_out)                    \
  DO(fixup_rows_at_a_stride)              \
  DO(fp8_loads_assume_alignment)          \
  DO(last_odd_key_skipped)                \
  DO(last_page_read_whole)                \
  DO(last_split_dropped)                  \
  DO(last_vector_stored_whole)            \
  DO(log2_e_of_four_digits)               \
  DO(logit_scale_in_bf16)                 \
  DO(lse_of_the_first_split)              \
  DO(mask_of_the_first_query)             \
  DO(mask_of_the_first_tile)              \
  DO(masked_values_times_zero)            \
  DO(merge_before_the_last_part)          \
  DO(merge_clamps_weights)                \
  DO(merge_in_base_e)                     \
  DO(merge_in_order_of_arrival)           \
  DO(merge_keeps_lse)                     \
  DO(merge_swaps_shares)                  \
  DO(natural_exponential)                 \
  DO(output_rounded_toward_zero)          \
  DO(output_scale_in_bf16)                \
  DO(page_offset_in_int32)                \
  DO(page_offset_wraps)                   \
  DO(partials_in_bf16)                    \
  DO(partials_overlap)                    \
  DO(probabilities_in_bf16)               \
  DO(probabilities_truncated)             \
  DO(query_heads_interleaved)             \
  DO(query_strides_ignored)               \
  DO(semaphore_left_set)                  \
  DO(short_kv_sees_one_key)               \
  DO(sink_in_every_split)                 \
  DO(sink_missing_from_lse)               \
  DO(sink_missing_from_output)            \
  DO(sink_of_the_first_head_in_its_group) \
  DO(sink_scaled_as_a_logit)              \
  DO(small_growth_not_rescaled)           \
  DO(small_weights_flushed)               \
  DO(split_remainder_dropped)             \
  DO(sum_not_rescaled)                    \
  DO(table_gap_ignored)                   \
  DO(tile_taken_from_one_page)            \
  DO(value_at_a_tile_edge_skipped)        \
  DO(values_accumulated_in_bf16)          \
  DO(values_at_key_strides)               \
  DO(window_from_a_tile_edge)             \
  DO(window_of_the_first_query)           \
  DO(window_one_long)                     \
  DO(window_one_short)

enum class Defect {
#define ATTNFUZZ_ENUMERATOR(name) name,
  ATTNFUZZ_FOR_EACH_DEFECT(ATTNFUZZ_ENUMERATOR)
#undef ATTNFUZZ_ENUMERATOR
  count
};

#ifdef ATTNFUZZ_DEFECTS

// Changed only between calls, while no thread is working.
inline bool is_planted[static_cast<int>(Defect::count)];

inline bool planted(Defect defect) { return is_planted[static_cast<int>(defect)]; }

// Plants the defect of that name in addition to others. False for an unknown name.
inline bool plant(std::string_view name) {
#define ATTNFUZZ_PLANT(known) \
  if (name == #known) return is_planted[static_cast<int>(Defect::known)] = true;
  ATTNFUZZ_FOR_EACH_DEFECT(ATTNFUZZ_PLANT)
#undef ATTNFUZZ_PLANT
  return false;
}

inline void uproot_all() { std::memset(is_planted, 0, sizeof is_planted); }

#else

ON_BOTH constexpr bool planted(Defect) { return false; }

#endif

// `value` rounded to the 8 significant bits of a bf16, to nearest. By arithmetic, since GCC 12.2 drops a conditional
// assignment whose right side masks the bits of a float.
inline float in_bf16(float value) {
  int exponent;
  const float mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, 8)), exponent - 8);
}

// `value` rounded toward zero to the 8 significant bits of a bf16.
inline float cut_to_bf16(float value) {
  int exponent;
  const float mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::trunc(std::ldexp(mantissa, 8)), exponent - 8);
}

}  // namespace attnfuzz
