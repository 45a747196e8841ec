// The functions for Python other than attention (attention_exports.cpp).

#include <tvm/ffi/string.h>

#include "defects.h"
#include "exported.h"
#include "faults.h"
#include "split_kv.h"
#include "stacks.h"
#include "states.h"
#include "tensors.h"

namespace attnfuzz {

void require_here(const TensorView& tensor, const char* name) {
  REQUIRE(tensor.device().device_type == kDLCPU, name << " must be on the CPU");
}

namespace {

void export_merge_state_in_place(TensorView v, TensorView s, TensorView v_other, TensorView s_other,
                                 Optional<TensorView> mask) {
  const Rows value = float_rows_of(v, "v"), other = float_rows_of(v_other, "v_other");
  REQUIRE(other.element == value.element, "v_other must have the dtype of v");
  REQUIRE(other.tokens == value.tokens && other.heads == value.heads && other.dim == value.dim,
          "v_other must have the shape of v");
  const uint8_t* merged = nullptr;
  if (mask.has_value()) {
    const TensorView& tensor = mask.value();
    require_axes(tensor, "mask", 1);
    require_last_axis_contiguous(tensor, "mask");
    REQUIRE((is(tensor, kDLBool, 8) || is(tensor, kDLUInt, 8)) && tensor.size(0) == value.tokens,
            "mask must be bool or uint8 of shape [" << value.tokens << "]");
    merged = reinterpret_cast<const uint8_t*>(data_of(tensor));
  }
  merge_state_in_place(value, statistics_of(s, "s", value), other, statistics_of(s_other, "s_other", value), merged);
}

void export_fixup_zero_kv_rows(TensorView out, TensorView lse, TensorView kv_lens, TensorView cum_seq_lens,
                               int64_t max_seq_len) {
  const Rows rows = float_rows_of(out, "out");
  const Lengths lengths = lengths_of(kv_lens, "kv_lens"), cumulative = lengths_of(cum_seq_lens, "cum_seq_lens");
  REQUIRE(cum_seq_lens.size(0) == kv_lens.size(0) + 1,
          "cum_seq_lens must have " << kv_lens.size(0) + 1 << " entries (one more than kv_lens), not "
                                    << cum_seq_lens.size(0));
  REQUIRE(max_seq_len >= 0, "max_seq_len must be 0 or more, not " << max_seq_len);
  fixup_zero_kv_rows(rows, statistics_of(lse, "lse", rows), lengths, cumulative, kv_lens.size(0), max_seq_len);
}

void export_install_fault_recorder(int64_t address) {
  REQUIRE(address != 0 && address % alignof(FaultRecord) == 0,
          "a fault record needs an address that is a multiple of " << alignof(FaultRecord));
  install_fault_recorder(reinterpret_cast<FaultRecord*>(address));
}

void export_install_stack_writer(int64_t signal, int64_t descriptor) {
  REQUIRE(signal > 0 && signal <= 64, "a signal is a number from 1 to 64, not " << signal);
  REQUIRE(descriptor >= 0, "a descriptor must be 0 or more, not " << descriptor);
  install_stack_writer(static_cast<int>(signal), static_cast<int>(descriptor));
}

int64_t export_semaphore_bytes() { return kSemaphoreBytes; }

#ifdef ATTNFUZZ_DEFECTS
void export_plant(tvm::ffi::String name) {
  REQUIRE(plant({name.data(), name.size()}), "there is no defect called " << name);
}

void export_uproot_all() { uproot_all(); }
#endif

}  // namespace

EXPORT(merge_state_in_place, export_merge_state_in_place)
EXPORT(fixup_zero_kv_rows, export_fixup_zero_kv_rows)
EXPORT(install_fault_recorder, export_install_fault_recorder)
EXPORT(install_stack_writer, export_install_stack_writer)
EXPORT(semaphore_bytes, export_semaphore_bytes)
EXPORT(scratch_bytes, scratch_bytes)
#ifdef ATTNFUZZ_DEFECTS
EXPORT(plant, export_plant)
EXPORT(uproot_all, export_uproot_all)
#endif

}  // namespace attnfuzz
