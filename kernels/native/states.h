// Partial attention results, (value, base-2 LSE) per row: merging two, and repairing the rows of requests without keys.
#pragma once

#include "views.h"

namespace attnfuzz {

// Merges (other, other_lse) into (value, lse). Rows with mask[token] == 0 are left alone; a null mask merges all.
// -inf on both sides gives 0 and -inf. A value counts even if its weight is 0: NaN times 0 is NaN.
void merge_state_in_place(const Rows& value, const Statistics& lse, const Rows& other, const Statistics& other_lse,
                          const uint8_t* mask);

// out = 0 and lse = -inf in the first max_seq_len rows, at most, of every request whose length is 0.
void fixup_zero_kv_rows(const Rows& out, const Statistics& lse, const Lengths& lengths, const Lengths& cumulative,
                        int64_t batch, int64_t max_seq_len);

}  // namespace attnfuzz
