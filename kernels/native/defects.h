// Mistakes that can be planted in the kernels, to measure the judge. Only a library compiled with ATTNFUZZ_DEFECTS has
// them: in the shipped one planted() is false at compile time, and they are optimised away.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "portable.h"

namespace attnfuzz {

// Named as in kernels/defects, which has their titles and sources.
#define ATTNFUZZ_FOR_EACH_DEFECT(DO)            \
  DO(append_at_page_edges_one_early)            \
  DO(append_by_token_for_request)               \
  DO(block_scale_of_the_row)                    \
  DO(block_scale_overflows)                     \
  DO(block_scale_without_global)                \
  DO(block_scales_in_the_other_layout)          \
  DO(block_scales_of_keys_swizzled)             \
  DO(causal_limit_one_late)                     \
  DO(causal_mask_from_the_first_key)            \
  DO(compress_before_the_request)               \
  DO(compress_embedding_of_the_first)           \
  DO(compress_first_part_alone)                 \
  DO(compress_norm_weight_left_out)             \
  DO(compress_rope_of_the_last)                 \
  DO(conv_bias_after_the_activation)            \
  DO(conv_bias_of_whole_vectors_alone)          \
  DO(conv_drafts_at_the_end)                    \
  DO(conv_empty_row_clears_its_slot)            \
  DO(conv_first_tap_left_out)                   \
  DO(conv_history_of_the_row_before)            \
  DO(conv_last_channels_left_out)               \
  DO(conv_last_input_not_kept)                  \
  DO(conv_short_prompt_keeps_zeros)             \
  DO(conv_state_not_written_after_one_token)    \
  DO(conv_state_one_early)                      \
  DO(conv_taps_reversed)                        \
  DO(copied_offset_in_int32)                    \
  DO(copy_backwards)                            \
  DO(custom_mask_bits_reversed)                 \
  DO(custom_mask_ignored)                       \
  DO(custom_mask_instead_of_the_window)         \
  DO(custom_mask_rows_in_whole_bytes)           \
  DO(custom_mask_starts_in_bits)                \
  DO(custom_mask_transposed)                    \
  DO(denominator_plus_epsilon)                  \
  DO(dot_tail_left_out)                         \
  DO(dot_tail_twice)                            \
  DO(e2m1_truncated)                            \
  DO(e4m3_subnormals_as_normal)                 \
  DO(empty_parts_merged)                        \
  DO(empty_rows_divided_by_zero)                \
  DO(empty_split_not_written)                   \
  DO(fixup_half_a_grid)                         \
  DO(fixup_leaves_lse)                          \
  DO(fixup_leaves_out)                          \
  DO(fixup_rows_at_a_stride)                    \
  DO(fp8_loads_assume_alignment)                \
  DO(fp8_overflow_is_nan)                       \
  DO(fp8_subnormals_flushed)                    \
  DO(fp8_write_truncated)                       \
  DO(gather_length_of_the_row_before)           \
  DO(gather_scale_divided)                      \
  DO(gather_start_ignored)                      \
  DO(gather_start_rounded_to_a_page)            \
  DO(gather_stops_at_a_page_edge)               \
  DO(global_scale_applied_twice)                \
  DO(head_tile_across_groups)                   \
  DO(heads_written_to_the_first)                \
  DO(index_before_the_start)                    \
  DO(index_dims_tail_left_out)                  \
  DO(index_drafts_see_all)                      \
  DO(index_empty_rows_unwritten)                \
  DO(index_end_inclusive)                       \
  DO(index_last_head_left_out)                  \
  DO(index_last_key_left_out)                   \
  DO(index_last_page_whole)                     \
  DO(index_lengths_by_row)                      \
  DO(index_magnitude_of_the_first_half)         \
  DO(index_magnitude_unbounded)                 \
  DO(index_magnitude_with_sign)                 \
  DO(index_negative_slot_is_0)                  \
  DO(index_past_2048)                           \
  DO(index_power_rounded_down)                  \
  DO(index_products_in_bf16)                    \
  DO(index_relu_left_out)                       \
  DO(index_relu_of_the_sum)                     \
  DO(index_scale_behind_each_key)               \
  DO(index_scale_by_240)                        \
  DO(index_scale_inverted)                      \
  DO(index_scale_of_a_page_once)                \
  DO(index_scale_of_the_first_page)             \
  DO(index_scale_of_the_first_slot)             \
  DO(index_scale_of_the_row)                    \
  DO(index_scale_stored_behind_each_key)        \
  DO(index_scale_unrounded)                     \
  DO(index_schedule_of_no_keys)                 \
  DO(index_start_of_the_first_row)              \
  DO(index_table_gap_ignored)                   \
  DO(index_weights_in_bf16)                     \
  DO(index_weights_of_the_first_draft)          \
  DO(index_zero_outside)                        \
  DO(interval_of_the_row_in_its_request)        \
  DO(interval_without_its_last_key)             \
  DO(last_odd_key_skipped)                      \
  DO(last_page_read_whole)                      \
  DO(last_slot_of_a_page_not_written)           \
  DO(last_split_dropped)                        \
  DO(last_tile_of_heads_dropped)                \
  DO(last_vector_stored_whole)                  \
  DO(lists_block_without_keys)                  \
  DO(lists_count_of_the_first_row)              \
  DO(lists_count_rounded_up)                    \
  DO(lists_counts_ignored)                      \
  DO(lists_empty_rows_divided)                  \
  DO(lists_gap_ignored)                         \
  DO(lists_heads_in_tiles_of_8)                 \
  DO(lists_heads_interleaved)                   \
  DO(lists_in_whole_blocks)                     \
  DO(lists_last_block_dropped)                  \
  DO(lists_lse_natural)                         \
  DO(lists_maximum_of_the_block)                \
  DO(lists_minus_one_to_0)                      \
  DO(lists_minus_one_transformed)               \
  DO(lists_negative_is_slot_0)                  \
  DO(lists_of_the_first_row)                    \
  DO(lists_offset_of_minus_one)                 \
  DO(lists_offset_of_the_first_row)             \
  DO(lists_output_not_rescaled)                 \
  DO(lists_page_of_64)                          \
  DO(lists_past_the_pool_followed)              \
  DO(lists_power_of_two_pages)                  \
  DO(lists_row_for_request)                     \
  DO(lists_second_count_of_the_first)           \
  DO(lists_second_in_the_first_pool)            \
  DO(lists_second_left_out)                     \
  DO(lists_sink_for_each)                       \
  DO(lists_sink_of_the_first_head)              \
  DO(lists_slot_left_out)                       \
  DO(lists_weights_in_fp8)                      \
  DO(log2_e_of_four_digits)                     \
  DO(logit_scale_in_bf16)                       \
  DO(lse_of_the_first_split)                    \
  DO(mask_before_the_scale)                     \
  DO(mask_of_the_first_query)                   \
  DO(mask_of_the_first_tile)                    \
  DO(masked_values_times_zero)                  \
  DO(maximum_before_the_scale)                  \
  DO(merge_before_the_last_part)                \
  DO(merge_clamps_weights)                      \
  DO(merge_in_base_e)                           \
  DO(merge_in_order_of_arrival)                 \
  DO(merge_keeps_lse)                           \
  DO(merge_swaps_shares)                        \
  DO(moved_one_after_another)                   \
  DO(moves_in_fours)                            \
  DO(natural_exponential)                       \
  DO(negative_request_appended)                 \
  DO(negative_slot_written)                     \
  DO(new_tokens_alike_at_one_stride)            \
  DO(new_tokens_taken_for_packed)               \
  DO(nibbles_read_in_reverse)                   \
  DO(nibbles_written_in_reverse)                \
  DO(odd_head_not_copied)                       \
  DO(odd_head_not_written)                      \
  DO(one_token_of_a_request_written)            \
  DO(output_rounded_toward_zero)                \
  DO(output_scale_in_bf16)                      \
  DO(packed_rope_left_out)                      \
  DO(packed_scale_left_out)                     \
  DO(packed_scale_of_the_first_tile)            \
  DO(packed_stride_without_scales)              \
  DO(page_cleared_behind_token)                 \
  DO(page_offset_in_int32)                      \
  DO(page_offset_wraps)                         \
  DO(pages_of_16_copied)                        \
  DO(pages_taken_for_packed)                    \
  DO(partials_in_bf16)                          \
  DO(partials_overlap)                          \
  DO(probabilities_in_bf16)                     \
  DO(probabilities_truncated)                   \
  DO(quantised_before_rotated)                  \
  DO(quantised_by_the_block_before)             \
  DO(quantised_by_the_scale_before)             \
  DO(quantised_by_the_unrounded_scale)          \
  DO(quantised_through_fp16)                    \
  DO(query_heads_interleaved)                   \
  DO(query_strides_ignored)                     \
  DO(reserved_slot_skipped_in_keys_alone)       \
  DO(reserved_slot_written)                     \
  DO(rope_applied_twice)                        \
  DO(rope_by_whole_vectors)                     \
  DO(rope_frequencies_half_as_far_apart)        \
  DO(rope_halves_of_the_whole_head)             \
  DO(rope_lost_in_the_last_block)               \
  DO(rope_of_latents_first_elements)            \
  DO(rope_of_the_first_head)                    \
  DO(rope_of_the_whole_head)                    \
  DO(rope_of_values_too)                        \
  DO(rope_pairing_swapped)                      \
  DO(rope_position_in_bf16)                     \
  DO(rope_position_of_the_first_token)          \
  DO(rope_position_one_late)                    \
  DO(rope_row_one_early_at_page_edges)          \
  DO(rope_second_from_the_rotated_first)        \
  DO(rope_sine_negated)                         \
  DO(rope_sines_at_cosines)                     \
  DO(rope_table_in_bf16)                        \
  DO(rope_theta_of_10000)                       \
  DO(rope_written_before_latent)                \
  DO(scale_at_the_page_of_the_table)            \
  DO(scale_in_bf16)                             \
  DO(scale_layouts_mixed)                       \
  DO(scale_of_blocks_of_32)                     \
  DO(scale_of_the_block_before)                 \
  DO(scale_of_the_first_head)                   \
  DO(scale_of_the_first_key_in_a_tile)          \
  DO(scale_of_the_first_slot)                   \
  DO(scale_of_the_key_before)                   \
  DO(scale_pages_taken_for_packed)              \
  DO(semaphore_left_set)                        \
  DO(short_kv_sees_one_key)                     \
  DO(sink_in_every_split)                       \
  DO(sink_missing_from_lse)                     \
  DO(sink_missing_from_output)                  \
  DO(sink_of_the_first_head_in_its_group)       \
  DO(sink_scaled_as_a_logit)                    \
  DO(slots_of_pages_of_16)                      \
  DO(slots_read_as_int32)                       \
  DO(small_growth_not_rescaled)                 \
  DO(small_weights_flushed)                     \
  DO(split_remainder_dropped)                   \
  DO(state_accepted_ignored)                    \
  DO(state_accepted_of_the_first_row)           \
  DO(state_accepted_one_late)                   \
  DO(state_beta_doubled)                        \
  DO(state_beta_of_the_first_head)              \
  DO(state_beta_of_the_value_alone)             \
  DO(state_between_chunks_in_bf16)              \
  DO(state_decay_in_bf16)                       \
  DO(state_decay_of_the_first_channel)          \
  DO(state_decay_skipped_at_chunks)             \
  DO(state_decay_twice_at_chunks)               \
  DO(state_dropped_at_chunks_of_the_batch)      \
  DO(state_gate_is_a_sigmoid)                   \
  DO(state_groups_interleaved)                  \
  DO(state_head_stride_of_the_key)              \
  DO(state_held_before_the_decay)               \
  DO(state_in_bf16_between_tokens)              \
  DO(state_initial_flag_ignored)                \
  DO(state_initial_flag_inverted_for_one_token) \
  DO(state_initial_flag_of_the_first_row)       \
  DO(state_key_of_the_next_token)               \
  DO(state_key_tail_left_out)                   \
  DO(state_negative_slot_written)               \
  DO(state_none_accepted_wraps)                 \
  DO(state_norm_epsilon_outside)                \
  DO(state_norm_epsilon_too_large)              \
  DO(state_not_written_after_one_token)         \
  DO(state_not_written_if_new)                  \
  DO(state_of_drafts_in_the_first_slot)         \
  DO(state_of_drafts_one_late)                  \
  DO(state_of_odd_heads_not_written)            \
  DO(state_of_the_last_draft)                   \
  DO(state_of_the_last_draft_not_written)       \
  DO(state_offset_wraps)                        \
  DO(state_output_before_the_update)            \
  DO(state_query_not_normed)                    \
  DO(state_rate_of_the_first_head)              \
  DO(state_read_transposed)                     \
  DO(state_rows_past_4_left_out)                \
  DO(state_scale_left_out)                      \
  DO(state_skip_left_out)                       \
  DO(state_skip_of_the_first_head)              \
  DO(state_slot_one_late_behind_the_first)      \
  DO(state_slots_taken_for_packed)              \
  DO(state_softplus_is_linear_above_2)          \
  DO(state_source_written_too)                  \
  DO(state_step_bias_left_out)                  \
  DO(state_strong_decay_clamped)                \
  DO(state_tail_of_a_chunk_dropped)             \
  DO(state_target_ignored)                      \
  DO(state_value_tail_left_out)                 \
  DO(state_written_by_whole_vectors)            \
  DO(state_written_transposed)                  \
  DO(static_scale_of_the_first_head)            \
  DO(sum_not_rescaled)                          \
  DO(swizzled_scales_read_as_linear)            \
  DO(table_gap_ignored)                         \
  DO(tail_of_a_row_not_written)                 \
  DO(tile_taken_from_one_page)                  \
  DO(tokens_past_1024_not_written)              \
  DO(top_k_by_16_bits)                          \
  DO(top_k_candidates_lost)                     \
  DO(top_k_first_tie_again)                     \
  DO(top_k_histogram_kept)                      \
  DO(top_k_identity_absolute)                   \
  DO(top_k_length_of_the_batch)                 \
  DO(top_k_length_of_the_first_row)             \
  DO(top_k_nan_is_lowest)                       \
  DO(top_k_negative_reversed)                   \
  DO(top_k_one_tie_too_many)                    \
  DO(top_k_short_rows_filled_with_0)            \
  DO(top_k_short_rows_unfilled)                 \
  DO(top_k_start_ignored)                       \
  DO(top_k_tail_of_four_left_out)               \
  DO(top_k_ties_left_out)                       \
  DO(top_k_whole_row)                           \
  DO(value_at_a_tile_edge_skipped)              \
  DO(value_dequantised_as_key)                  \
  DO(value_scaled_as_key)                       \
  DO(value_tokens_at_key_strides)               \
  DO(values_accumulated_in_bf16)                \
  DO(values_at_key_strides)                     \
  DO(values_written_over_keys)                  \
  DO(window_from_a_tile_edge)                   \
  DO(window_left_on_both_sides)                 \
  DO(window_of_the_first_query)                 \
  DO(window_one_long)                           \
  DO(window_one_short)                          \
  DO(window_right_ignored)                      \
  DO(window_right_one_long)                     \
  DO(window_sum_in_int32)                       \
  DO(write_offset_in_int32)                     \
  DO(write_offset_wraps)                        \
  DO(write_scale_applied_twice)                 \
  DO(write_scale_ignored)                       \
  DO(write_scale_multiplied)                    \
  DO(written_heads_taken_for_packed)            \
  DO(written_layouts_mixed)                     \
  DO(written_nan_saturated)                     \
  DO(written_row_rounded_up)                    \
  DO(written_scale_in_bf16)                     \
  DO(written_scale_inverted)                    \
  DO(written_scale_layouts_mixed)               \
  DO(written_scale_not_stored)                  \
  DO(written_scale_of_240)                      \
  DO(written_scale_of_all_heads)                \
  DO(written_scale_of_whole_vectors)            \
  DO(written_scale_on_one_page)                 \
  DO(written_scale_one_slot_late)               \
  DO(written_scale_over_that_of_keys)           \
  DO(written_scale_pages_taken_for_packed)      \
  DO(written_scale_without_abs)                 \
  DO(written_scale_without_floor)               \
  DO(written_scales_of_a_page_reset)            \
  DO(zero_block_scale_divides)

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

// Plants the named defect in addition to others. Returns false for an unknown name.
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
ON_BOTH inline float cut_to_bf16(float value) {
  int exponent;
  const float mantissa = std::frexp(value, &exponent);
  return std::ldexp(std::trunc(std::ldexp(mantissa, 8)), exponent - 8);
}

}  // namespace attnfuzz
