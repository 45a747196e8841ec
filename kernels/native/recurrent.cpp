#include "recurrent.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "defects.h"

namespace attnfuzz {
namespace {

constexpr int64_t kChunk = 64;

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

float softplus(float x) {
  if (planted(Defect::state_softplus_is_linear_above_2) && x > 2) return x;
  return x > 20 ? x : std::log1p(std::exp(x));
}

// The column of a row's slot that has its state.
int64_t column_of(const Batch& batch, int64_t row) {
  if (!batch.verify) return 0;
  const int64_t accepted = batch.accepted[planted(Defect::state_accepted_of_the_first_row) ? 0 : row];
  if (planted(Defect::state_accepted_ignored)) return 0;
  if (planted(Defect::state_accepted_one_late)) return accepted;
  if (planted(Defect::state_none_accepted_wraps)) return accepted - 1;
  if (planted(Defect::state_of_the_last_draft)) return std::max<int64_t>(batch.starts[row + 1] - batch.starts[row] - 1, 0);
  return std::max<int64_t>(accepted - 1, 0);
}

bool continues(const Batch& batch, int64_t row) {
  if (!batch.initial || planted(Defect::state_initial_flag_ignored)) return true;
  if (planted(Defect::state_initial_flag_inverted_for_one_token) && batch.starts[row + 1] - batch.starts[row] == 1) {
    return !batch.initial[row];
  }
  return batch.initial[planted(Defect::state_initial_flag_of_the_first_row) ? 0 : row];
}

bool skipped(int64_t slot) { return slot < 0 && !planted(Defect::state_negative_slot_written); }

// A padded row's slot, as Python counts from the end.
int64_t wrapped(int64_t slot) { return slot < 0 && planted(Defect::state_negative_slot_written) ? 0 : slot; }

// The recurrence of one value head of one row.
class Head {
 public:
  Head(const Factors& factors, int64_t head)
      : f_(factors), head_(head), state_(factors.key_dim * factors.value_dim), query_(factors.key_dim),
        key_(factors.key_dim), decay_(factors.key_dim), value_(factors.value_dim), held_(factors.value_dim),
        out_(factors.value_dim) {
    const int64_t group = factors.value_heads / factors.heads;
    key_head_ = planted(Defect::state_groups_interleaved) ? head % factors.heads : head / group;
  }

  void clear() { std::fill(state_.begin(), state_.end(), 0.0f); }

  void load(const States& states, int64_t slot) {
    load_row(states.element)(element(states, slot), static_cast<int64_t>(state_.size()), state_.data());
    if (planted(Defect::state_read_transposed) && f_.key_dim == f_.value_dim) transpose();
  }

  void store(const States& states, int64_t slot) {
    if (planted(Defect::state_of_odd_heads_not_written) && head_ % 2) return;
    int64_t n = static_cast<int64_t>(state_.size());
    if (planted(Defect::state_written_by_whole_vectors) && n > 16) n -= n % 16;
    if (planted(Defect::state_written_transposed) && f_.key_dim == f_.value_dim) transpose();
    store_row(states.element)(state_.data(), n, element(states, slot));
  }

  // `chunk` is the place of the token in its chunk, and `left` the number of tokens after it.
  void step(int64_t token, int64_t place, int64_t left, const Table& out) {
    read(token, place, left);
    const int64_t keys = f_.key_dim, values = f_.value_dim;
    const bool before = planted(Defect::state_output_before_the_update);
    if (before) write(token, out);
    if (planted(Defect::state_held_before_the_decay)) hold();
    for (int64_t d = 0; d < keys; ++d) {
      for (int64_t e = 0; e < values; ++e) state_[d * values + e] *= decay_[d];
    }
    if (!planted(Defect::state_held_before_the_decay)) hold();
    for (int64_t e = 0; e < values; ++e) {
      if (f_.delta) {
        value_[e] = planted(Defect::state_beta_of_the_value_alone) ? beta_ * value_[e] - held_[e]
                                                                   : beta_ * (value_[e] - held_[e]);
      }
    }
    const bool dropped = planted(Defect::state_tail_of_a_chunk_dropped) && tail_;
    for (int64_t d = 0; d < keys && !dropped; ++d) {
      for (int64_t e = 0; e < values; ++e) state_[d * values + e] += key_[d] * value_[e];
    }
    if (planted(Defect::state_in_bf16_between_tokens)) {
      for (float& each : state_) each = in_bf16(each);
    }
    if (planted(Defect::state_between_chunks_in_bf16) && place == kChunk - 1) {
      for (float& each : state_) each = in_bf16(each);
    }
    if (!before) write(token, out);
  }

  bool tail_ = false;

 private:
  char* element(const States& states, int64_t slot) const {
    int64_t at = head_ * static_cast<int64_t>(state_.size());
    if (planted(Defect::state_head_stride_of_the_key) && f_.value_heads > 2) at = head_ * f_.key_dim * f_.key_dim;
    return states.at(slot) + at * bytes(states.element);
  }

  void transpose() {
    for (int64_t d = 0; d < f_.key_dim; ++d) {
      for (int64_t e = 0; e < d; ++e) std::swap(state_[d * f_.value_dim + e], state_[e * f_.value_dim + d]);
    }
  }

  void normalise(std::vector<float>& x) const {
    float sum = 0;
    for (float each : x) sum += each * each;
    const float epsilon = planted(Defect::state_norm_epsilon_too_large) ? 1e-2f : f_.epsilon;
    const float factor = planted(Defect::state_norm_epsilon_outside) ? 1 / (std::sqrt(sum) + 0.05f)
                                                                     : 1 / std::sqrt(sum + epsilon);
    for (float& each : x) each *= factor;
  }

  void read(int64_t token, int64_t place, int64_t left) {
    const int64_t keys = f_.key_dim, values = f_.value_dim;
    f_.query.load(token, key_head_, keys, query_.data());
    f_.key.load(token, key_head_, keys, key_.data());
    if (planted(Defect::state_key_of_the_next_token) && left && place == kChunk - 1) {
      f_.key.load(token + 1, key_head_, keys, key_.data());
    }
    f_.value.load(token, head_, values, value_.data());
    if (planted(Defect::state_value_tail_left_out) && values > 16) {
      std::fill(value_.begin() + values / 16 * 16, value_.end(), 0.0f);
    }
    if (planted(Defect::state_key_tail_left_out) && keys > 16) {
      std::fill(key_.begin() + keys / 16 * 16, key_.end(), 0.0f);
    }
    if (f_.normed) {
      if (!planted(Defect::state_query_not_normed)) normalise(query_);
      normalise(key_);
    }
    if (!planted(Defect::state_scale_left_out)) {
      for (float& each : query_) each *= f_.scale;
    }
    read_decay(token, place);
    if (f_.delta) {
      beta_ = f_.beta.at(token, head_);
      if (f_.sigmoid) beta_ = sigmoid(beta_);
      if (planted(Defect::state_beta_of_the_first_head)) beta_ = sigmoid(f_.beta.at(token, 0));
      if (planted(Defect::state_beta_doubled)) beta_ *= 2;
    }
  }

  void read_decay(int64_t token, int64_t place) {
    const int64_t keys = f_.key_dim;
    float step = 0;
    if (f_.ssm) {
      step = softplus(f_.decay.at(token, head_) + bias(0));
      skip_ = value_;
      for (float& each : value_) each *= step;
    }
    for (int64_t d = 0; d < keys; ++d) {
      const int64_t at = f_.by_key && !planted(Defect::state_decay_of_the_first_channel) ? d : 0;
      float log_decay;
      if (f_.ssm) {
        log_decay = step * rate(at);
      } else if (f_.rate && !f_.decay) {
        log_decay = rate(0);
      } else if (f_.rate) {
        const float raw = f_.by_key ? channel(f_.decay, token, at) : f_.decay.at(token, head_);
        log_decay = -std::exp(rate(0)) * softplus(raw + bias(at));
      } else {
        log_decay = f_.by_key ? channel(f_.decay, token, at) : f_.decay.at(token, head_);
      }
      if (planted(Defect::state_decay_twice_at_chunks) && place == 0) log_decay *= 2;
      if (planted(Defect::state_decay_skipped_at_chunks) && place == 0) log_decay = 0;
      if (planted(Defect::state_strong_decay_clamped)) log_decay = std::max(log_decay, -5.0f);
      decay_[d] = std::exp(log_decay);
      if (planted(Defect::state_decay_in_bf16)) decay_[d] = in_bf16(decay_[d]);
    }
  }

  float channel(const Table& table, int64_t token, int64_t at) const {
    float value;
    load_row(table.element)(table.address(token, head_) + at * bytes(table.element), 1, &value);
    return value;
  }

  float rate(int64_t at) const {
    const int64_t head = planted(Defect::state_rate_of_the_first_head) ? 0 : head_;
    return f_.rate.at(head, at);
  }

  float bias(int64_t at) const {
    if (!f_.bias || planted(Defect::state_step_bias_left_out)) return 0;
    return f_.bias.at(head_, at);
  }

  void hold() {
    std::fill(held_.begin(), held_.end(), 0.0f);
    if (!f_.delta) return;
    for (int64_t d = 0; d < f_.key_dim; ++d) {
      for (int64_t e = 0; e < f_.value_dim; ++e) held_[e] += key_[d] * state_[d * f_.value_dim + e];
    }
  }

  void write(int64_t token, const Table& out) {
    const int64_t values = f_.value_dim;
    std::fill(out_.begin(), out_.end(), 0.0f);
    for (int64_t d = 0; d < f_.key_dim; ++d) {
      for (int64_t e = 0; e < values; ++e) out_[e] += query_[d] * state_[d * values + e];
    }
    if (f_.ssm && !planted(Defect::state_skip_left_out)) {
      const float factor = f_.skip.at(planted(Defect::state_skip_of_the_first_head) ? 0 : head_, 0);
      for (int64_t e = 0; e < values; ++e) out_[e] += factor * skip_[e];
    }
    if (f_.gate) {
      std::vector<float> gate(values);
      f_.gate.load(token, head_, values, gate.data());
      for (int64_t e = 0; e < values; ++e) {
        out_[e] *= planted(Defect::state_gate_is_a_sigmoid) ? sigmoid(gate[e]) : gate[e] * sigmoid(gate[e]);
      }
    }
    store_row(out.element)(out_.data(), values, out.address(token, head_));
  }

  const Factors& f_;
  int64_t head_, key_head_;
  float beta_ = 1;
  std::vector<float> state_, query_, key_, decay_, value_, held_, out_, skip_;
};

void recur_row(const Factors& factors, const Batch& batch, const States& states, const Table& out, int64_t row) {
  const int64_t begin = batch.starts[row], end = batch.starts[row + 1];
  const int64_t source = batch.sources.at(row, column_of(batch, row));
  if (begin == end || skipped(source)) return;
  const auto& targets = planted(Defect::state_target_ignored) ? batch.sources : batch.targets;
  for (int64_t head = 0; head < factors.value_heads; ++head) {
    Head state(factors, head);
    if (continues(batch, row)) {
      state.load(states, wrapped(source));
    } else {
      state.clear();
    }
    for (int64_t token = begin; token < end; ++token) {
      const int64_t place = (token - begin) % kChunk;
      state.tail_ = end - begin > kChunk && token - begin >= (end - begin) / kChunk * kChunk;
      state.step(token, place, end - token - 1, out);
      if (planted(Defect::state_dropped_at_chunks_of_the_batch) && token % kChunk == kChunk - 1 && begin % kChunk) {
        state.clear();
      }
      if (!batch.verify) continue;
      int64_t column = token - begin;
      if (planted(Defect::state_of_drafts_in_the_first_slot)) column = 0;
      if (planted(Defect::state_of_the_last_draft_not_written) && column && token == end - 1) continue;
      if (planted(Defect::state_of_drafts_one_late) && end - begin > 1) column = std::min(column + 1, end - begin - 1);
      state.store(states, wrapped(targets.at(row, column)));
    }
    if (batch.verify) continue;
    if (planted(Defect::state_not_written_after_one_token) && batch.initial && end - begin == 1) continue;
    if (planted(Defect::state_not_written_if_new) && batch.initial && !batch.initial[row]) continue;
    state.store(states, wrapped(targets.at(row, 0)));
    if (planted(Defect::state_source_written_too)) state.store(states, wrapped(source));
  }
}

class Channel {
 public:
  Channel(const Convolution& convolution, int64_t channel)
      : c_(convolution), channel_(channel), taps_(convolution.width) {
    c_.weight.load(channel, 0, c_.width, taps_.data());
    if (planted(Defect::conv_taps_reversed)) std::reverse(taps_.begin(), taps_.end());
    if (c_.bias && !(planted(Defect::conv_bias_of_whole_vectors_alone) && channel >= c_.channels / 8 * 8)) {
      bias_ = c_.bias.at(channel, 0);
    }
  }

  // `inputs` has width - 1 inputs, and then those of the tokens from `begin` on.
  void run(const std::vector<float>& inputs, int64_t begin, const Table& out) const {
    const int64_t tokens = static_cast<int64_t>(inputs.size()) - c_.width + 1;
    for (int64_t t = 0; t < tokens; ++t) {
      float sum = planted(Defect::conv_bias_after_the_activation) ? 0 : bias_;
      const int64_t taps = planted(Defect::conv_first_tap_left_out) ? 1 : 0;
      for (int64_t j = taps; j < c_.width; ++j) sum += taps_[j] * inputs[t + j];
      if (c_.activated) sum *= sigmoid(sum);
      if (planted(Defect::conv_bias_after_the_activation)) sum += bias_;
      store_row(out.element)(&sum, 1, out.address(begin + t, 0) + channel_ * bytes(out.element));
    }
  }

  float input(int64_t token) const {
    float value;
    load_row(c_.x.element)(c_.x.address(token, 0) + channel_ * bytes(c_.x.element), 1, &value);
    return value;
  }

 private:
  const Convolution& c_;
  int64_t channel_;
  std::vector<float> taps_;
  float bias_ = 0;
};

void convolve_row(const Convolution& c, const Batch& batch, const States& states, const Table& out, int64_t row) {
  const int64_t begin = batch.starts[row], end = batch.starts[row + 1], source = batch.sources.at(row, 0);
  if (skipped(source)) return;
  if (begin == end) {
    if (planted(Defect::conv_empty_row_clears_its_slot)) {
      std::fill_n(states.at(source), states.elements * bytes(states.element), 0);
    }
    return;
  }
  const int64_t before = c.width - 1, first = column_of(batch, row), stride = bytes(states.element);
  const bool continued = continues(batch, row);
  for (int64_t channel = 0; channel < c.channels; ++channel) {
    if (planted(Defect::conv_last_channels_left_out) && c.channels > 16 && channel >= c.channels / 16 * 16) continue;
    const Channel one(c, channel);
    char* slot = states.at(wrapped(source)) + channel * c.window * stride;
    std::vector<float> inputs(before, 0.0f);
    if (continued) load_row(states.element)(slot + first * stride, before, inputs.data());
    if (planted(Defect::conv_history_of_the_row_before) && begin >= before && !continued) {
      for (int64_t j = 0; j < before; ++j) inputs[j] = one.input(begin - before + j);
    }
    for (int64_t token = begin; token < end; ++token) inputs.push_back(one.input(token));
    one.run(inputs, begin, out);
    auto from = inputs.begin() + (batch.verify ? 1 : end - begin);
    int64_t n = batch.verify ? before + (end - begin) - 1 : before;
    if (planted(Defect::conv_short_prompt_keeps_zeros) && !batch.verify && end - begin < before) {
      std::fill_n(inputs.begin(), before, 0.0f);
    }
    if (planted(Defect::conv_state_one_early) && !batch.verify) --from;
    int64_t column = 0;
    if (planted(Defect::conv_drafts_at_the_end) && batch.verify) column = c.window - n;
    if (planted(Defect::conv_last_input_not_kept)) --n;
    if (planted(Defect::conv_state_not_written_after_one_token) && batch.initial && end - begin == 1) continue;
    store_row(states.element)(&*from, n, slot + column * stride);
  }
}

}  // namespace

char* States::at(int64_t slot) const {
  int64_t offset = slot * (planted(Defect::state_slots_taken_for_packed) ? elements : slot_stride);
  if (planted(Defect::state_offset_wraps)) offset %= int64_t{1} << 13;
  if (planted(Defect::state_slot_one_late_behind_the_first) && slot > 3) --offset;
  return data + offset * bytes(element);
}

void recur(const Factors& factors, const Batch& batch, const States& states, const Table& out) {
  const int64_t rows = planted(Defect::state_rows_past_4_left_out) ? std::min<int64_t>(batch.rows, 4) : batch.rows;
  for (int64_t row = 0; row < rows; ++row) recur_row(factors, batch, states, out, row);
}

void convolve(const Convolution& convolution, const Batch& batch, const States& states, const Table& out) {
  for (int64_t row = 0; row < batch.rows; ++row) convolve_row(convolution, batch, states, out, row);
}

}  // namespace attnfuzz
