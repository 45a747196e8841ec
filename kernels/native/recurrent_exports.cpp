// The functions of recurrent state for Python.

#include "defects.h"
#include "exported.h"
#include "recurrent.h"
#include "tensors.h"

namespace attnfuzz {
namespace {

using Maybe = const Optional<TensorView>&;

// The first axis has rows, and the second one columns if there is one; elements of a third one are contiguous.
Table table_of(const TensorView& tensor, const char* name) {
  require_here(tensor, name);
  const Element element = element_of(tensor, name);
  REQUIRE(is_float(element), name << " must be float32, bfloat16 or float16");
  const int axes = static_cast<int>(tensor.ndim());
  REQUIRE(axes >= 1 && axes <= 3, name << " must have 1 to 3 axes");
  if (axes == 3) require_last_axis_contiguous(tensor, name);
  return {data_of(tensor), element, tensor.stride(0), axes > 1 ? tensor.stride(1) : 0};
}

Table table_of(Maybe tensor, const char* name) { return tensor.has_value() ? table_of(tensor.value(), name) : Table{}; }

Slots slots_of(const TensorView& tensor, const char* name) {
  require_here(tensor, name);
  REQUIRE(is(tensor, kDLInt, 32), name << " must be int32");
  return {reinterpret_cast<const int32_t*>(data_of(tensor)), tensor.stride(0), tensor.ndim() > 1 ? tensor.stride(1) : 0};
}

const int32_t* numbers_of(const TensorView& tensor, const char* name) {
  require_here(tensor, name);
  REQUIRE(is(tensor, kDLInt, 32), name << " must be int32");
  require_last_axis_contiguous(tensor, name);
  return reinterpret_cast<const int32_t*>(data_of(tensor));
}

Batch batch_of(const TensorView& slots, const TensorView& targets, const TensorView& starts, Maybe initial,
               Maybe accepted) {
  Batch batch = {slots_of(slots, "slots"), slots_of(targets, "target_slots"), numbers_of(starts, "cu_seqlens")};
  batch.initial = initial.has_value() ? reinterpret_cast<const uint8_t*>(data_of(initial.value())) : nullptr;
  batch.verify = accepted.has_value();
  batch.accepted = batch.verify ? numbers_of(accepted.value(), "num_accepted") : nullptr;
  batch.rows = slots.size(0);
  return batch;
}

States states_of(const TensorView& state) {
  require_here(state, "state");
  int64_t elements = 1;
  for (int axis = static_cast<int>(state.ndim()) - 1; axis > 0; --axis) {
    REQUIRE(state.size(axis) == 1 || state.stride(axis) == elements, "a slot's states must be contiguous");
    elements *= state.size(axis);
  }
  return {data_of(state), element_of(state, "state"), state.stride(0), elements};
}

void export_recur(TensorView query, TensorView key, TensorView value, Optional<TensorView> decay,
                  Optional<TensorView> beta, Optional<TensorView> gate, Optional<TensorView> rate,
                  Optional<TensorView> bias, Optional<TensorView> skip, TensorView state, TensorView slots,
                  TensorView targets, TensorView starts, Optional<TensorView> initial, Optional<TensorView> accepted,
                  TensorView out, double scale, double epsilon, bool by_key, bool sigmoid, bool normed, bool ssm) {
  Factors factors = {table_of(query, "query"), table_of(key, "key"),   table_of(value, "value"),
                     table_of(decay, "decay"), table_of(beta, "beta"), table_of(gate, "gate"),
                     table_of(rate, "rate"),   table_of(bias, "bias"), table_of(skip, "skip")};
  factors.scale = static_cast<float>(scale);
  factors.epsilon = static_cast<float>(epsilon);
  factors.by_key = by_key;
  factors.sigmoid = sigmoid;
  factors.normed = normed;
  factors.delta = beta.has_value();
  factors.ssm = ssm;
  factors.heads = key.size(1);
  factors.value_heads = value.size(1);
  factors.key_dim = key.size(2);
  factors.value_dim = value.size(2);
  REQUIRE(factors.value_heads % factors.heads == 0, "value heads must be a multiple of heads");
  recur(factors, batch_of(slots, targets, starts, initial, accepted), states_of(state), table_of(out, "out"));
}

void export_convolve(TensorView x, TensorView weight, Optional<TensorView> bias, TensorView state, TensorView slots,
                     TensorView starts, Optional<TensorView> initial, Optional<TensorView> accepted, TensorView out,
                     bool activated) {
  // Channels are contiguous, and so are a channel's taps.
  REQUIRE(x.stride(1) == 1 || x.size(1) == 1, "channels must be contiguous");
  REQUIRE(weight.stride(1) == 1, "taps must be contiguous");
  Convolution convolution = {table_of(x, "x"), table_of(weight, "weight"), table_of(bias, "bias")};
  convolution.channels = x.size(1);
  convolution.width = weight.size(1);
  convolution.window = state.size(2);
  convolution.activated = activated;
  convolve(convolution, batch_of(slots, slots, starts, initial, accepted), states_of(state), table_of(out, "out"));
}

}  // namespace

EXPORT(recur, export_recur)
EXPORT(convolve, export_convolve)

}  // namespace attnfuzz
